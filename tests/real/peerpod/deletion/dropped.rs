//! Deletions that are dropped in the middle, as by the deadline of a call to the cloud.

use std::time::Duration;

use anyhow::{Result, ensure};
use peerpod_operator::provider::Provider as _;
use testbed::vm_name;
use tokio::time::timeout;

use super::{Peer, STORAGE_VOL_DELETE, absent, proven};
use crate::support::run;

/// libvirt's procedure.
const DOMAIN_DESTROY: i32 = 12;

/// By then a deletion waits for the answer to the lost call.
const DROPPED_AFTER: Duration = Duration::from_secs(2);

#[test]
fn a_dropped_deletion_loses_no_volume_of_a_domain_that_is_undefined_then() -> Result<()> {
    run(async {
        let peer = Peer::start().await?;
        let (host, client) = (peer.libvirtd.host(), peer.libvirtd.host().client());
        let (relay, provider) = peer.relayed()?;
        for lost in [None, Some(DOMAIN_DESTROY), Some(STORAGE_VOL_DELETE)] {
            let vm = host.start_pod_vm(&vm_name("web")).await?;
            let own = proven(&provider, vm.domain.uuid).await?;
            // The look for the root volume, or all calls of the procedure.
            relay.lose([lost.map_or_else(|| vm.root.key.clone().into_bytes(), call_of)]);
            let deletion = timeout(DROPPED_AFTER, provider.delete(&own)).await;
            ensure!(deletion.is_err(), "it ended without an answer to {lost:?}");
            relay.lose_none();

            // The deletion may have turned it off.
            let _ = client.domain_destroy(&vm.domain).await;
            client.domain_undefine_plain(&vm.domain).await?;
            provider.delete(&proven(&provider, vm.domain.uuid).await?).await?;
            peer.vanished(&vm).await?;
            absent(&provider, vm.domain.uuid).await?;
        }
        Ok(())
    })
}

/// What only calls of this procedure have in their packets: the protocol's version, the procedure, and the type of a call.
pub fn call_of(procedure: i32) -> Vec<u8> {
    [1, procedure, 0].map(i32::to_be_bytes).concat()
}
