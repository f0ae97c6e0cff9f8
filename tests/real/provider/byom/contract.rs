//! The contract of every provider, kept by a pool in a cluster.

use anyhow::Result;

use crate::{provider::contract::keeps_it_in, support::without_operator};

#[test]
fn byom_keeps_the_contract() -> Result<()> {
    without_operator(async |testbed| keeps_it_in(Some(testbed), "byom", 10).await)
}
