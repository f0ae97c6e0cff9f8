//! peerpod-operator.
