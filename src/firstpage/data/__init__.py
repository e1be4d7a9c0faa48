"""From folders of images to batches."""
