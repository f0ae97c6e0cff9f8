//! PeerPods as they are shown *(no client)*.

use std::{collections::HashMap, sync::Arc};

use jiff::Timestamp;
use kube::ResourceExt;
use operator_kit::EventType;
use serde::Serialize;
use uuid::Uuid;

use crate::{
    api::v1alpha1::PeerPod,
    peerpod::{
        object::{created, owner},
        reasons::{ConditionType, Reason},
    },
};

/// One PeerPod.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Row {
    pub(super) namespace: String,
    pub(super) name: String,
    /// The Pod that owns it.
    pub(super) pod: Option<String>,
    #[serde(skip)]
    pub(super) pod_uid: Option<Uuid>,
    /// The node of this Pod; null if the Pod is gone, or if the caller may not read it.
    pub(super) node: Option<String>,
    pub(super) cloud: String,
    /// The VM's identifier.
    pub(super) vm: String,
    pub(super) state: State,
    pub(super) reason: Option<String>,
    pub(super) message: Option<String>,
    pub(super) created: Timestamp,
    /// Since when it is in this state.
    pub(super) since: Timestamp,
}

/// How a PeerPod is, the worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(super) enum State {
    /// A person must act.
    Stalled,
    /// Something is unusual; the operator tries again.
    Delayed,
    /// The operator waits for something that ends without a person's help.
    Waiting,
    /// It is being deleted.
    Deleting,
    /// There is nothing to do.
    Active,
}

operator_kit::labels! {
    /// How it is shown.
    pub(super) State {
        Stalled => "Stalled",
        Delayed => "Delayed",
        Waiting => "Waiting",
        Deleting => "Deleting",
        Active => "Active",
    }
}

impl Row {
    pub(super) fn of(peerpod: PeerPod) -> Self {
        let conditions = || peerpod.status.iter().flat_map(|status| &status.conditions);
        let is_true = |type_: ConditionType| {
            conditions().find(move |it| it.status == "True" && it.type_ == type_.as_str())
        };
        let stalled = is_true(ConditionType::Stalled).map(|it| (State::Stalled, it));
        let reported = stalled.or_else(|| {
            let waits = is_true(ConditionType::Reconciling)?;
            Some((if is_warning(&waits.reason) { State::Delayed } else { State::Waiting }, waits))
        });
        let deleted = peerpod.metadata.deletion_timestamp.as_ref().map(|time| time.0);
        let (state, since) = match (&reported, deleted) {
            (Some((state, condition)), _) => (*state, condition.last_transition_time.0),
            (None, Some(deleted)) => (State::Deleting, deleted),
            (None, None) => (State::Active, created(&peerpod)),
        };
        let (reason, message) = reported.map(|(_, it)| (it.reason.clone(), it.message.clone())).unzip();
        let pod = owner(&peerpod);
        Self {
            pod: pod.map(|pod| pod.name.clone()),
            pod_uid: pod.and_then(|pod| pod.uid.parse().ok()),
            node: None,
            state,
            reason,
            message,
            created: created(&peerpod),
            since,
            namespace: peerpod.namespace().unwrap_or_default(),
            name: peerpod.name_any(),
            cloud: peerpod.spec.cloud_provider.unwrap_or_default(),
            vm: peerpod.spec.instance_id.unwrap_or_default(),
        }
    }
}

/// Whether a reason is a problem. A reason that this program does not know is one.
fn is_warning(reason: &str) -> bool {
    Reason::named(reason).is_none_or(|reason| reason.event() == EventType::Warning)
}

/// Adds the nodes of Pods by their uids, and sorts: the worst state first, within a state the longest one.
pub(super) fn complete(rows: &mut [Row], nodes: &HashMap<Uuid, Arc<str>>) {
    for row in rows.iter_mut() {
        row.node = row.pod_uid.and_then(|uid| nodes.get(&uid)).map(|node| node.as_ref().to_owned());
    }
    rows.sort_by(|a, b| {
        let key = |row: &Row| (row.state, row.since);
        key(a).cmp(&key(b)).then_with(|| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)))
    });
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const UID: &str = "0dd2f0c5-6a3d-44a7-9b5e-2f7a6c2f9a11";

    fn row(name: &str, deleted: Option<&str>, conditions: &[Value]) -> Row {
        let owner = json!({ "apiVersion": "v1", "kind": "Pod", "name": "web", "uid": UID });
        Row::of(
            serde_json::from_value(json!({
                "apiVersion": "confidentialcontainers.org/v1alpha1", "kind": "PeerPod",
                "metadata": {
                    "name": name, "namespace": "shop", "creationTimestamp": "2026-01-01T00:00:00Z",
                    "deletionTimestamp": deleted, "ownerReferences": [owner],
                },
                "spec": { "cloudProvider": "aws", "instanceID": "i-1" },
                "status": { "conditions": conditions },
            }))
            .unwrap(),
        )
    }

    fn condition(type_: &str, status: &str, reason: &str, since: &str) -> Value {
        json!({ "type": type_, "status": status, "reason": reason, "message": "m", "lastTransitionTime": since })
    }

    #[test]
    fn the_worst_comes_first_and_in_each_state_what_lasts_longest() {
        let (early, late) = ("2026-01-02T00:00:00Z", "2026-01-03T00:00:00Z");
        let stalled = |since| condition("Stalled", "True", "NoOwner", since);
        let waits = |reason| condition("Reconciling", "True", reason, early);
        let fine = |type_| condition(type_, "False", "AsExpected", early);
        let mut rows = vec![
            row("active", None, &[]),
            row("kept", None, &[condition("KeptForPod", "True", "PodIsOlder", early)]),
            row("deleting", Some(early), &[fine("Stalled"), fine("Reconciling")]),
            row("waiting", Some(early), &[waits("WaitingForPod"), fine("Stalled")]),
            row("delayed", Some(early), &[waits("CloudUnavailable"), fine("Stalled")]),
            row("unknown", Some(early), &[waits("OfALaterVersion")]),
            row("stalled", Some(early), &[fine("Reconciling"), stalled(late)]),
            row("stalled-longer", None, &[stalled(early)]),
        ];
        complete(&mut rows, &HashMap::from([(UID.parse().unwrap(), "node-1".into())]));
        let shown: Vec<_> = rows.iter().map(|row| (&*row.name, row.state)).collect();
        assert_eq!(
            shown,
            [
                ("stalled-longer", State::Stalled),
                ("stalled", State::Stalled),
                ("delayed", State::Delayed),
                ("unknown", State::Delayed),
                ("waiting", State::Waiting),
                ("deleting", State::Deleting),
                ("active", State::Active),
                ("kept", State::Active),
            ]
        );
        assert_eq!((rows[0].reason.as_deref(), rows[0].message.as_deref()), (Some("NoOwner"), Some("m")));
        assert_eq!((rows[5].reason.as_deref(), rows[5].since), (None, early.parse().unwrap()));
        assert!(rows.iter().all(|row| row.node.as_deref() == Some("node-1")));
        complete(&mut rows, &HashMap::new());
        assert!(rows.iter().all(|row| row.node.is_none()), "a Pod that is not there has no node");
    }
}
