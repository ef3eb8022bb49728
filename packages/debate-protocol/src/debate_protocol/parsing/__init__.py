"""Reading a reply: its contract, tags, sections, votes and answers."""
