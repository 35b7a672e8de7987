import asyncio
import threading

from engine.server.inbox import End, Inbox, News


def test_news_of_one_answer_are_put_together_until_they_are_taken():
    async def run():
        inbox = Inbox()
        for token in range(1000):
            inbox.put(0, News([token]))
        inbox.put(1, News([7], cached_tokens=3))
        inbox.put(0, News(end=End.LENGTH))
        news = await inbox.take()
        assert news[0] == News(list(range(1000)), end=End.LENGTH)
        assert news[1] == News([7], cached_tokens=3)

    asyncio.run(run())


def test_a_reader_misses_nothing_that_a_thread_puts():
    async def run():
        inbox, heard = Inbox(), []

        def speak():
            for token in range(5000):
                inbox.put(token % 3, News([token]))
            inbox.put(0, News(end=End.STOP))

        thread = threading.Thread(target=speak)
        thread.start()
        end = None
        while end is None:
            for news in (await inbox.take()).values():
                heard += news.tokens
                end = end or news.end
        thread.join()
        assert sorted(heard) == list(range(5000))

    asyncio.run(run())


def test_the_end_comes_after_what_was_put_before_it_and_nothing_after_the_end():
    async def run():
        inbox = Inbox()
        inbox.put(1, News([7]))
        inbox.end(End.LATE)
        inbox.put(2, News([8]))
        inbox.end(End.CLOSED)
        assert await inbox.take() == {1: News([7])}
        assert await inbox.take() == await inbox.take() == {0: News(end=End.LATE)}

    asyncio.run(run())


def test_who_speaks_to_a_loop_that_is_gone_is_not_held():
    inbox = asyncio.run(make())
    inbox.put(0, News([1]))


async def make() -> Inbox:
    return Inbox()
