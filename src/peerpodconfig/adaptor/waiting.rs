//! Which peer pods keep cloud-api-adaptor from becoming ready *(client required)*.
//!
//! It is ready once every Pod of its runtime class on its node has become ready since it started. A completed Job, a Pod that
//! cannot start and a Pod that has been ready all along never do.

use jiff::{SignedDuration, Timestamp};
use kube::{Api, Client, api::ListParams};
use operator_kit::{
    api_call::{self, ApiError},
    projection::reading,
    text::listed,
};

use super::pod_view::{POD, PodView};

/// The number of nodes on which the operator looks for them. One is enough to know what to do.
const NODES: usize = 3;

/// A cloud-api-adaptor that has run for less than this may become ready by itself.
const START: SignedDuration = SignedDuration::from_secs(20);

/// A restarted one that has run for less than this may restart again, whatever Pods there are.
const STABLE: SignedDuration = SignedDuration::from_mins(10);

/// A cloud-api-adaptor that runs and is not ready.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Unready {
    pub(super) node: String,
    /// When its container started.
    pub(super) since: Timestamp,
}

/// Whether a cloud-api-adaptor that is not ready waits for Pods. It has run since `since`, after this many `restarts`. It does not
/// wait for Pods if it has just begun, or if it ends again and again.
pub(super) fn is_waiting(since: Timestamp, restarts: i32, now: Timestamp) -> bool {
    now.duration_since(since) >= if restarts > 0 { STABLE } else { START }
}

/// The Pods that these wait for, for the condition; `None` if no Pod delays those that were checked.
pub(super) async fn blocking_pods(
    client: &Client,
    runtime_class: &str,
    mut unready: Vec<Unready>,
) -> Result<Option<String>, ApiError> {
    unready.sort();
    let pods: Api<PodView> = Api::all(reading(client, &POD));
    for Unready { node, since } in unready.into_iter().take(NODES) {
        let params = ListParams::default().fields(&format!("spec.nodeName={node}"));
        let mut waits_for = Vec::new();
        api_call::for_each(&pods, &params, |pod| waits_for.extend(held_up_by(pod, runtime_class, since)))
            .await?;
        if !waits_for.is_empty() {
            waits_for.sort();
            return Ok(Some(message(&node, &waits_for)));
        }
    }
    Ok(None)
}

/// The Pod, with its namespace, if a cloud-api-adaptor that started at `since` waits for it.
fn held_up_by(pod: PodView, runtime_class: &str, since: Timestamp) -> Option<String> {
    if pod.spec.runtime_class_name.as_deref() != Some(runtime_class) {
        return None;
    }
    let ready = pod.ready()?;
    let why = if ready.status != "True" {
        "not ready"
    // Both are whole seconds, and it reads its clock after its container has started.
    } else if ready.last_transition_time.as_ref().is_some_and(|time| time.0 <= since) {
        "ready since before it started"
    } else {
        return None;
    };
    let text = |text: Option<String>| text.unwrap_or_default();
    Some(format!("{}/{} ({why})", text(pod.metadata.namespace), text(pod.metadata.name)))
}

fn message(node: &str, pods: &[String]) -> String {
    let pods = listed(pods);
    format!(
        "on node {node}, cloud-api-adaptor waits for the Pods {pods}: it becomes ready when each of them has become ready \
         since it started, or is deleted; delete those that have ended, and those that were ready before"
    )
}

#[cfg(test)]
mod tests {
    use operator_kit::testing::read_and_projected;
    use serde_json::{Value, json};

    use super::*;

    fn pod(class: &str, ready: Option<(&str, &str)>) -> PodView {
        let condition = |(status, time): (&str, &str)| json!({ "type": "Ready", "status": status, "lastTransitionTime": time, "message": "fat" });
        let conditions: Vec<Value> = ready.into_iter().map(condition).collect();
        let [_, pod] = read_and_projected::<PodView>(
            &POD,
            &json!({
                "metadata": { "name": "a", "namespace": "shop", "annotations": { "fat": "x" } },
                "spec": { "runtimeClassName": class, "containers": [] },
                "status": { "conditions": conditions },
            }),
        );
        pod
    }

    #[test]
    fn it_waits_for_pods_of_its_class_that_are_not_ready_or_older_than_it() {
        let since = "2026-11-23T10:00:00Z".parse().unwrap();
        let held_up = |pod| held_up_by(pod, "kata-remote", since);
        let not_ready = pod("kata-remote", Some(("False", "2026-11-23T10:05:00Z")));
        assert_eq!(held_up(not_ready).as_deref(), Some("shop/a (not ready)"));
        for time in ["2026-11-23T09:59:59Z", "2026-11-23T10:00:00Z"] {
            let older = pod("kata-remote", Some(("True", time)));
            assert_eq!(held_up(older).as_deref(), Some("shop/a (ready since before it started)"), "{time}");
        }
        assert_eq!(held_up(pod("kata-remote", Some(("True", "2026-11-23T10:00:01Z")))), None);
        assert_eq!(held_up(pod("kata-remote", None)), None, "the kubelet has not seen it");
        assert_eq!(held_up(pod("runc", Some(("False", "2026-11-23T09:00:00Z")))), None);
    }

    #[test]
    fn one_that_has_just_begun_or_ends_again_and_again_waits_for_no_pod() {
        let since: Timestamp = "2026-11-23T10:00:00Z".parse().unwrap();
        let after =
            |minutes, restarts| is_waiting(since, restarts, since + SignedDuration::from_mins(minutes));
        assert!(!after(0, 0) && after(1, 0) && !after(1, 1) && after(10, 1));
    }
}
