//! The admission webhook: turns Pods of one runtime class into peer pods.
