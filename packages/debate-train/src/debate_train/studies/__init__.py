"""`debate-train study`: arms of recipes over seeds, from shared starts, run and compared."""
