"""Where the bytes are: layout, host pool, page map and hot tables, and what moves them."""
