//! What a long-running operator needs around its controllers.
