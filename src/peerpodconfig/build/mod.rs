//! The objects that one configuration needs, built from it. Pure *(no client)*.
