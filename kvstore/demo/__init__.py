"""`kvstore demo`: conversations whose KV lives in kvstore, compared with a plain run."""
