//! Whether the address still leads to the host that gave an answer *(client required)*.
//!
//! The client keeps its connections, and an open connection stays with its host. When the address leads to another host,
//! cloud-api-adaptor makes VMs there, of which the former host knows nothing. So an answer that something is absent counts only if
//! the address led to the same host after the question: a connection that was opened later proves that. One such connection serves all
//! who asked before it.
//!
//! A VM that the operator deleted on this host is on no other one. A usual deletion ends with that, so it costs no connection.

use std::{collections::HashSet, time::Duration};

use parking_lot::Mutex;
use tokio::time::Instant;
use uuid::Uuid;

use super::Libvirt;
use crate::provider::{Error, single_flight::SingleFlight};

/// The most deleted VMs that are remembered. When full, the memory is cleared. A forgotten VM costs one more connection.
const MOST_DELETED: usize = 1_000;

/// How long after its question a caller may still open a connection of its own, after it has waited for that of another one.
const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// What proves that this client's host is still the one that the address leads to.
#[derive(Default)]
pub(super) struct HostProof {
    connecting: SingleFlight<()>,
    deleted: Deleted,
}

/// VMs that the operator deleted on this host, until it has seen their absence.
#[derive(Default)]
struct Deleted(Mutex<HashSet<Uuid>>);

impl HostProof {
    /// Notes that the VM was on this host and that the operator deleted it there.
    pub(super) fn note_deleted(&self, vm: Uuid) {
        self.deleted.note(vm);
    }
}

impl Deleted {
    fn note(&self, vm: Uuid) {
        let mut all = self.0.lock();
        if all.len() >= MOST_DELETED {
            all.clear();
        }
        all.insert(vm);
    }

    /// Whether the VM was noted. That is forgotten then.
    fn take(&self, vm: Uuid) -> bool {
        self.0.lock().remove(&vm)
    }
}

impl Libvirt {
    /// Fails unless the absence of the VM counts, which was `asked` for at that time.
    pub(super) async fn ensure_absent(&self, vm: Uuid, asked: Instant) -> Result<(), Error> {
        if self.host_proof.deleted.take(vm) { Ok(()) } else { self.ensure_same_host(asked).await }
    }

    /// Fails unless the address led to the expected host after that time.
    pub(super) async fn ensure_same_host(&self, asked: Instant) -> Result<(), Error> {
        let connect = async {
            let verified = self.client.verify_host().await;
            verified.map_err(|error| {
                self.explain("checking that the address still leads to the same host", &error)
            })
        };
        let late =
            "another check that the address still leads to the same host took long; the operator looks again";
        // Boxed, as a future this large would be held twice.
        self.host_proof.connecting.after(asked, LONGEST_WAIT, late, Box::pin(connect)).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deletion_proves_one_absence() {
        let (deleted, vm) = (Deleted::default(), Uuid::from_u128(1));
        assert!(!deleted.take(vm));
        deleted.note(vm);
        assert!(!deleted.take(Uuid::from_u128(2)), "another VM");
        assert!(deleted.take(vm));
        assert!(!deleted.take(vm));
    }

    #[test]
    fn the_memory_of_deleted_vms_is_bounded() {
        let (deleted, vms) = (Deleted::default(), 0..=MOST_DELETED as u128);
        vms.clone().for_each(|number| deleted.note(Uuid::from_u128(number)));
        assert!(deleted.0.lock().len() <= MOST_DELETED);
        assert!(deleted.take(Uuid::from_u128(*vms.end())));
    }
}
