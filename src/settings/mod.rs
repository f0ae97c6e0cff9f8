//! Mounted folders become typed settings, one provider per pair of folders, reloaded while running.
