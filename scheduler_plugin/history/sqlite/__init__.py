"""A history in one file of bounded size, for one machine or one small Deployment. A damaged file is set aside."""
