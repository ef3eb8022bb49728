"""All recorded debates of runs, as a page can search and show them."""
