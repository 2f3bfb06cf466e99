"""What is where: keys, layouts, extents and slots, the directory, the device seam, and the bytes of each tier."""
