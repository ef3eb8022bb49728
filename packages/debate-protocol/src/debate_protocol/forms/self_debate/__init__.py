"""Two first answers shown for a second one (SDRL)."""
