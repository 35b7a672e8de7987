"""Models as files: GGUF, and folders in Hugging Face's form, checked whole before anything is loaded."""
