//! What every provider keeps.

use anyhow::{Result, ensure};
use peerpod_operator::provider::contract::Cannot;
use testbed::contract::keep;

use crate::support::run;

#[test]
fn libvirt_keeps_the_contract() -> Result<()> {
    run(async {
        let mut failed = Vec::new();
        let tally = keep("libvirt", |name, outcome| {
            if let Err(Cannot::Failed(error)) = outcome {
                failed.push(format!("{name}: {error}"));
            }
        })
        .await?;
        ensure!(failed.is_empty(), "{failed:#?}");
        // A scenario that a peer no longer shows would be missed here.
        ensure!(tally.passed == 11, "{tally:?}");
        Ok(())
    })
}
