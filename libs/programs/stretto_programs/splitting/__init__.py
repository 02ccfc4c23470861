"""A step in two parts that run: data workers prepare raw elements, home trains with what they prepared."""
