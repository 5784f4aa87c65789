"""Reading users' data, writing results, and the files of our own that runs continue from."""
