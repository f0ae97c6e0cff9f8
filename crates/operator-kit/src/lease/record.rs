//! A Lease and what matters of it. Fields and their meaning are those of Kubernetes' own leader election, so that other
//! controllers can be candidates for the same Lease.

use std::time::Duration;

use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::MicroTime,
};

use super::candidate::Record;

/// The content of a Lease. A missing or invalid duration is `None`.
pub(super) fn read(lease: &Lease) -> Record {
    let Some(spec) = &lease.spec else { return Record::default() };
    let seconds = spec.lease_duration_seconds.and_then(|seconds| u64::try_from(seconds).ok());
    Record {
        holder: spec.holder_identity.clone().unwrap_or_default(),
        duration: seconds.filter(|seconds| *seconds > 0).map(Duration::from_secs),
        acquired: spec.acquire_time.as_ref().map(|time| time.0),
        renewed: spec.renew_time.as_ref().map(|time| time.0),
        transitions: spec.lease_transitions.unwrap_or_default(),
    }
}

/// Writes this into the Lease; everything else in it stays.
pub(super) fn write(lease: &mut Lease, record: Record) {
    let Record { holder, duration, acquired, renewed, transitions } = record;
    let spec = lease.spec.get_or_insert_with(LeaseSpec::default);
    spec.holder_identity = Some(holder);
    spec.lease_duration_seconds = duration.and_then(|duration| i32::try_from(duration.as_secs()).ok());
    spec.acquire_time = acquired.map(MicroTime);
    spec.renew_time = renewed.map(MicroTime);
    spec.lease_transitions = Some(transitions);
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn lease(spec: &serde_json::Value) -> Lease {
        serde_json::from_value(json!({ "metadata": { "labels": { "team": "a" } }, "spec": spec })).unwrap()
    }

    #[test]
    fn a_record_of_another_election_is_read_and_written_unchanged() {
        let spec = json!({
            "holderIdentity": "other-operator-7d_0b4c",
            "leaseDurationSeconds": 15,
            "acquireTime": "2026-08-01T10:00:00.000001Z",
            "renewTime": "2026-08-01T10:00:02.000002Z",
            "leaseTransitions": 3,
        });
        let mut before = lease(&spec);
        let record = read(&before);
        assert_eq!(record.holder, "other-operator-7d_0b4c");
        assert_eq!((record.duration, record.transitions), (Some(Duration::from_secs(15)), 3));
        write(&mut before, record);
        assert_eq!(before, lease(&spec));
    }

    #[test]
    fn an_empty_lease_has_no_holder() {
        for spec in [json!({}), json!({ "holderIdentity": "", "leaseDurationSeconds": -1 })] {
            assert_eq!(read(&lease(&spec)), Record::default());
        }
        assert_eq!(read(&Lease::default()), Record::default());
    }
}
