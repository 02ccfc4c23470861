"""Messages about objects that another controller runs."""
