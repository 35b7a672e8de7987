/* A libcuda.so.1 in host memory, so that kvstore/cuda/device.py runs through the real cuda-bindings: the
 * order, types and structures of what arrives here are looked at, as the driver's header has them. Copies are
 * over when their call returns, events of an odd number are done at the second question. It proves what is
 * handed over, not what a device makes of it.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { OK = 0, INVALID = 1, OUT_OF_MEMORY = 2, BAD_DEVICE = 101, BAD_CONTEXT = 201, BAD_HANDLE = 400,
       NOT_FOUND = 500, NOT_READY = 600, ALREADY = 712, NOT_REGISTERED = 713 };
enum { HOST_POINTER = 91, VIRTUAL_MEMORY = 102, POSIX_FD = 103, DEVICES = 2, MOST = 256, DEVICE_TYPE = 1, ORDER_STREAM = 1 };

typedef uint64_t Address;
typedef struct { int type, id; } Location;
typedef struct { int type, handle_types; Location location; void *windows; unsigned char flags[8]; } Properties;
typedef struct { Location location; int flags; } Access;
typedef struct { int order; Location source, target; unsigned flags; } CopyAttributes;
typedef struct { char bytes[64]; } Ipc;

static const size_t granularity = 1 << 21, total = (size_t)1 << 30;
static int contexts[DEVICES], retained[DEVICES];
static __thread int *stack[8];
static __thread int depth;
static struct { int used, fd, own; size_t size; } pages[MOST];
static struct { Address at; size_t size; int page; } ranges[MOST];
static struct { Address at; size_t size; } pinned[MOST];
static struct { int used, asked; } events[MOST];
static size_t in_use;

#define NEED(condition, code) do { if (!(condition)) return code; } while (0)
#define CONTEXT() NEED(depth > 0, BAD_CONTEXT)

static int device_of(Location where) { return where.type == DEVICE_TYPE && where.id >= 0 && where.id < DEVICES; }
static int right(const Properties *is) { return is->type == 1 && is->handle_types == 1 && device_of(is->location); }

static int range_at(Address at) {
    for (int i = 0; i < MOST; i++) if (ranges[i].size && ranges[i].at == at) return i;
    return -1;
}
static int page_new(int fd, size_t size, int own) {
    for (int i = 1; i < MOST; i++) if (!pages[i].used) {
        pages[i].used = 1; pages[i].fd = fd; pages[i].size = size; pages[i].own = own; return i;
    }
    return 0;
}
static void page_end(int i) {
    if (--pages[i].used) return;
    close(pages[i].fd);
    if (pages[i].own) in_use -= pages[i].size;
}

int cuInit(unsigned flags) { return flags ? INVALID : OK; }
int cuDriverGetVersion(int *version) { *version = 13000; return OK; }
int cuDeviceGetCount(int *count) { *count = DEVICES; return OK; }
int cuDeviceGet(int *device, int number) { *device = number; return OK; }
int cuDeviceGetName(char *name, int length, int device) { strncpy(name, "Stub GPU", length); return OK; }
int cuDeviceTotalMem(size_t *bytes, int device) { *bytes = total; return OK; }
int cuDeviceGetUuid(char *uuid, int device) { memset(uuid, 0xA0 + device, 16); return OK; }
int cuDeviceGetAttribute(int *value, int attribute, int device) {
    NEED(attribute == VIRTUAL_MEMORY || attribute == POSIX_FD || attribute == HOST_POINTER, INVALID);
    /* The second device has other addresses for pinned memory. */
    *value = attribute != HOST_POINTER || device == 0;
    return OK;
}
int cuDevicePrimaryCtxRetain(void **context, int device) {
    retained[device]++;
    *context = &contexts[device];
    return OK;
}
int cuDevicePrimaryCtxRelease(int device) { return retained[device]-- > 0 ? OK : BAD_CONTEXT; }
int cuCtxPushCurrent(void *context) { stack[depth++] = context; return OK; }
int cuCtxPopCurrent(void **context) { CONTEXT(); *context = stack[--depth]; return OK; }
int cuMemGetInfo(size_t *free, size_t *all) { CONTEXT(); *free = total - in_use; *all = total; return OK; }
int cuCtxSynchronize(void) { CONTEXT(); return OK; }

int cuMemGetAllocationGranularity(size_t *size, const Properties *properties, int option) {
    NEED(right(properties) && option == 0, INVALID);
    *size = granularity;
    return OK;
}
int cuMemAddressReserve(Address *at, size_t size, size_t alignment, Address fixed, unsigned long long flags) {
    NEED(size && size % granularity == 0 && !alignment && !fixed && !flags, INVALID);
    for (int i = 0; i < MOST; i++) if (!ranges[i].size) {
        *at = (Address)mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        ranges[i].at = *at; ranges[i].size = size; ranges[i].page = 0;
        return OK;
    }
    return OUT_OF_MEMORY;
}
int cuMemAddressFree(Address at, size_t size) {
    int i = range_at(at);
    NEED(i >= 0 && ranges[i].size == size && !ranges[i].page, INVALID);
    munmap((void *)at, size);
    ranges[i].size = 0;
    return OK;
}
int cuMemCreate(unsigned long long *handle, size_t size, const Properties *properties, unsigned long long flags) {
    NEED(right(properties) && size && size % granularity == 0 && !flags, INVALID);
    NEED(in_use + size <= total, OUT_OF_MEMORY);
    int fd = memfd_create("stub", MFD_CLOEXEC);
    NEED(fd >= 0 && ftruncate(fd, size) == 0, OUT_OF_MEMORY);
    in_use += size;
    *handle = page_new(fd, size, 1);
    return OK;
}
int cuMemRelease(unsigned long long handle) {
    NEED(handle < MOST && pages[handle].used, INVALID);
    page_end(handle);
    return OK;
}
int cuMemMap(Address at, size_t size, size_t offset, unsigned long long handle, unsigned long long flags) {
    int i = range_at(at);
    NEED(i >= 0 && handle < MOST && pages[handle].used && !offset && !flags, INVALID);
    NEED(size == ranges[i].size && size == pages[handle].size && !ranges[i].page, INVALID);
    mmap((void *)at, size, PROT_NONE, MAP_SHARED | MAP_FIXED, pages[handle].fd, 0);
    ranges[i].page = handle;
    pages[handle].used++;
    return OK;
}
int cuMemUnmap(Address at, size_t size) {
    int i = range_at(at);
    NEED(i >= 0 && ranges[i].size == size && ranges[i].page, INVALID);
    mmap((void *)at, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    page_end(ranges[i].page);
    ranges[i].page = 0;
    return OK;
}
int cuMemSetAccess(Address at, size_t size, const Access *access, size_t count) {
    int i = range_at(at);
    NEED(i >= 0 && ranges[i].size == size && ranges[i].page, INVALID);
    NEED(count == 1 && device_of(access->location) && access->flags == 3, INVALID);
    return mprotect((void *)at, size, PROT_READ | PROT_WRITE) ? INVALID : OK;
}
int cuMemExportToShareableHandle(void *fd, unsigned long long handle, int type, unsigned long long flags) {
    NEED(handle < MOST && pages[handle].used && type == 1 && !flags, INVALID);
    *(int *)fd = dup(pages[handle].fd);
    return OK;
}
int cuMemImportFromShareableHandle(unsigned long long *handle, void *fd, int type) {
    struct stat found;
    NEED(type == 1 && fstat((int)(intptr_t)fd, &found) == 0, INVALID);
    *handle = page_new(dup((int)(intptr_t)fd), found.st_size, 0);
    return OK;
}

int cuMemAlloc(Address *at, size_t size) {
    unsigned long long handle;
    Properties properties = {1, 1, {DEVICE_TYPE, 0}};
    Access access = {{DEVICE_TYPE, 0}, 3};
    CONTEXT();
    size = (size + granularity - 1) / granularity * granularity;
    int code = cuMemCreate(&handle, size, &properties, 0);
    NEED(code == OK, code);
    cuMemAddressReserve(at, size, 0, 0, 0);
    cuMemMap(*at, size, 0, handle, 0);
    cuMemRelease(handle);
    return cuMemSetAccess(*at, size, &access, 1);
}
int cuMemFree(Address at) {
    int i = range_at(at);
    NEED(i >= 0, INVALID);
    size_t size = ranges[i].size;
    int code = cuMemUnmap(at, size);
    return code == OK ? cuMemAddressFree(at, size) : code;
}
int cuIpcGetMemHandle(Ipc *handle, Address at) {
    CONTEXT();
    NEED(range_at(at) >= 0, INVALID);
    for (int i = 0; i < 64; i++) handle->bytes[i] = (char)(i * 3 + 1);
    return OK;
}
/* By value, as the driver has it: all its bytes have to arrive. */
int cuIpcOpenMemHandle(Address *at, Ipc handle, unsigned flags) {
    CONTEXT();
    NEED(flags == 1, INVALID);
    for (int i = 0; i < 64; i++) NEED(handle.bytes[i] == (char)(i * 3 + 1), INVALID);
    return cuMemAlloc(at, 1);
}
int cuIpcCloseMemHandle(Address at) { return cuMemFree(at); }

int cuMemHostRegister(void *address, size_t size, unsigned flags) {
    CONTEXT();
    NEED(flags == 1 && (Address)address % 4096 == 0, INVALID);
    /* As pinning does; whoever holds Python's lock meanwhile stops all others. */
    usleep(100000);
    for (int i = 0; i < MOST; i++) NEED(!pinned[i].size || pinned[i].at != (Address)address, ALREADY);
    for (int i = 0; i < MOST; i++) if (!pinned[i].size) {
        pinned[i].at = (Address)address; pinned[i].size = size;
        return OK;
    }
    return OUT_OF_MEMORY;
}
int cuMemHostUnregister(void *address) {
    for (int i = 0; i < MOST; i++) if (pinned[i].size && pinned[i].at == (Address)address) {
        pinned[i].size = 0;
        return OK;
    }
    return NOT_REGISTERED;
}

int cuStreamCreate(uintptr_t *stream, unsigned flags) { CONTEXT(); *stream = 77; return flags == 1 ? OK : INVALID; }
int cuStreamDestroy(uintptr_t stream) { return stream == 77 ? OK : BAD_HANDLE; }
int cuEventCreate(uintptr_t *event, unsigned flags) {
    CONTEXT();
    NEED(flags == 2, INVALID);
    for (int i = 1; i < MOST; i++) if (!events[i].used) {
        events[i].used = 1;
        *event = i;
        return OK;
    }
    return OUT_OF_MEMORY;
}
int cuEventDestroy(uintptr_t event) { NEED(events[event].used, BAD_HANDLE); events[event].used = 0; return OK; }
int cuEventRecord(uintptr_t event, uintptr_t stream) {
    NEED(event < MOST && events[event].used && stream == 77, BAD_HANDLE);
    events[event].asked = 0;
    return OK;
}
int cuEventQuery(uintptr_t event) {
    NEED(event < MOST && events[event].used, BAD_HANDLE);
    return event % 2 && !events[event].asked++ ? NOT_READY : OK;
}
int cuMemcpyAsync(Address target, Address source, size_t size, uintptr_t stream) {
    CONTEXT();
    NEED(stream == 77, BAD_HANDLE);
    memcpy((void *)target, (void *)source, size);
    return OK;
}
int cuMemcpyBatchAsync(Address *targets, Address *sources, size_t *sizes, size_t count, CopyAttributes *attributes,
                       size_t *first, size_t kinds, uintptr_t stream) {
    CONTEXT();
    NEED(stream == 77 && count && kinds == 1 && first[0] == 0 && attributes->order == ORDER_STREAM, INVALID);
    for (size_t i = count; i-- > 0;) memcpy((void *)targets[i], (void *)sources[i], sizes[i]);
    return OK;
}

/* STUB_WITHOUT: the one call that this driver does not have. */
int cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status) {
    const char *without = getenv("STUB_WITHOUT");
    if (without && !strcmp(name, without)) {
        *function = NULL;
        if (status) *status = 1;
        return NOT_FOUND;
    }
    Dl_info own;
    dladdr((void *)cuInit, &own);
    void *library = dlopen(own.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
    *function = library ? dlsym(library, strcmp(name, "cuGetProcAddress") ? name : "cuGetProcAddress_v2") : NULL;
    if (library) dlclose(library);
    if (status) *status = *function ? 0 : 1;
    return *function ? OK : NOT_FOUND;
}
