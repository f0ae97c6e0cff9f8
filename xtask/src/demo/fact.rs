//! Observations, and the text of each.

use jiff::Timestamp;
use serde_json::Value;
use testbed::Request;

use super::paint::Style;

/// Something that was observed.
#[derive(Clone, Debug)]
pub(super) struct Observation {
    /// When it happened, by the clock of its source. If the source has no clock, when it was observed.
    pub(super) at: Timestamp,
    pub(super) fact: Fact,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fact {
    /// A command was run.
    Command(String),
    /// The watch of Pods showed this change.
    Pod { name: String, change: PodChange },
    /// The watch of PeerPods showed this change.
    PeerPod { name: String, change: PeerPodChange },
    /// The watch of nodes showed that this one now advertises so many VMs; `None`: no VMs.
    Node { name: String, vms: Option<String> },
    /// The watch of `PeerPodConfigs` showed this change.
    Config { name: String, change: ConfigChange },
    /// virsh reported an event of a domain, in its own words.
    Domain { name: String, event: String },
    /// The API server's audit log has this write.
    Write(Request),
    /// An event about a PeerPod appeared.
    Event { warning: bool, reason: String, note: String },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PodChange {
    Runs,
    /// It is being deleted, and its containers have this time to end.
    Ending {
        grace_seconds: i64,
    },
    /// Its containers have ended.
    Through {
        phase: String,
    },
    /// The scheduler finds no node for it, with this reason.
    Unschedulable {
        message: String,
    },
    Gone,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PeerPodChange {
    /// It is being deleted, and these finalizers hold it.
    Marked {
        finalizers: Vec<String>,
    },
    /// This condition is True now.
    Condition {
        type_: String,
        reason: String,
        message: String,
    },
    /// It has no finalizers any more.
    Released,
    Gone,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ConfigChange {
    /// This condition is True now.
    Condition {
        type_: String,
        reason: String,
    },
    Gone,
}

/// The actor or the source of an observation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Who<'a> {
    You,
    Pod,
    PeerPod,
    Node,
    PeerPodConfig,
    Libvirt,
    CloudApiAdaptor,
    Operator,
    GarbageCollector,
    Event { warning: bool },
    User(&'a str),
}

impl<'a> Who<'a> {
    /// The actor with this user name at the API server.
    pub(super) fn of(user: &'a str) -> Self {
        match user {
            "kubernetes-admin" => Self::You,
            "system:serviceaccount:kube-system:generic-garbage-collector" => Self::GarbageCollector,
            _ if user.ends_with(":cloud-api-adaptor") => Self::CloudApiAdaptor,
            _ if user.ends_with("-operator") => Self::Operator,
            _ => Self::User(user),
        }
    }

    pub(super) fn name(self) -> &'a str {
        match self {
            Self::You => "you",
            Self::Pod => "Pod",
            Self::PeerPod => "PeerPod",
            Self::Node => "Node",
            Self::PeerPodConfig => "PeerPodConfig",
            Self::Libvirt => "libvirt",
            Self::CloudApiAdaptor => "cloud-api-adaptor",
            Self::Operator => "operator",
            Self::GarbageCollector => "garbage collector",
            Self::Event { .. } => "event",
            Self::User(name) => name,
        }
    }

    pub(super) fn style(self) -> Style {
        match self {
            Self::You => Style::Bold,
            Self::Pod | Self::PeerPod | Self::Node | Self::PeerPodConfig => Style::Cyan,
            Self::Libvirt => Style::Magenta,
            Self::CloudApiAdaptor => Style::Blue,
            Self::Operator => Style::Green,
            Self::GarbageCollector => Style::Yellow,
            Self::Event { warning: true } => Style::Red,
            Self::Event { warning: false } | Self::User(_) => Style::Plain,
        }
    }
}

impl Fact {
    /// The actor and the text; `None` if another fact says the same.
    pub(super) fn line(&self) -> Option<(Who<'_>, String)> {
        Some(match self {
            Self::Command(command) => (Who::You, format!("$ {command}")),
            Self::Pod { name, change } => (Who::Pod, format!("{name} {}", pod(change))),
            Self::PeerPod { name, change } => (Who::PeerPod, format!("{name} {}", peerpod(change))),
            Self::Node { name, vms: Some(vms) } => (Who::Node, format!("{name} advertises {vms} VMs")),
            Self::Node { name, vms: None } => (Who::Node, format!("{name} advertises no VMs any more")),
            Self::Config { name, change } => (Who::PeerPodConfig, format!("{name} {}", config(change))),
            // A domain that starts must have been defined.
            Self::Domain { event, .. } if event.starts_with("Defined") => return None,
            Self::Domain { name, event } => {
                let event = event.to_lowercase();
                let (what, why) = event.split_once(' ').unwrap_or((&event, "no reason given"));
                (Who::Libvirt, format!("domain {name}: {what} ({why})"))
            }
            Self::Write(request) => {
                let who = Who::of(&request.user);
                // Commands have their own line. So do events, and the watches of nodes and PeerPodConfigs.
                let seen = ["events", "nodes/status", "peerpodconfigs", "peerpodconfigs/status"];
                if who == Who::You || seen.contains(&request.resource.as_str()) {
                    return None;
                }
                (who, write(request))
            }
            Self::Event { warning, reason, note } => {
                let type_ = if *warning { "Warning" } else { "Normal" };
                (Who::Event { warning: *warning }, format!("{type_} {reason}: {note}"))
            }
        })
    }
}

fn pod(change: &PodChange) -> String {
    match change {
        PodChange::Runs => "runs".to_owned(),
        PodChange::Ending { grace_seconds } => {
            format!("is being deleted; its containers have {grace_seconds} s to end")
        }
        PodChange::Through { phase } => format!("has ended: {phase}"),
        PodChange::Unschedulable { message } => format!("fits on no node: {message}"),
        PodChange::Gone => "is gone".to_owned(),
    }
}

fn peerpod(change: &PeerPodChange) -> String {
    match change {
        PeerPodChange::Marked { finalizers } => {
            format!("is being deleted; held by {}", finalizers.join(", "))
        }
        PeerPodChange::Condition { type_, reason, message } => {
            format!("has the condition {type_}, reason {reason}: {message}")
        }
        PeerPodChange::Released => "has no finalizer any more".to_owned(),
        PeerPodChange::Gone => "is gone".to_owned(),
    }
}

fn config(change: &ConfigChange) -> String {
    match change {
        ConfigChange::Condition { type_, reason } => format!("is {type_}, reason {reason}"),
        ConfigChange::Gone => "is gone".to_owned(),
    }
}

fn write(request: &Request) -> String {
    let Request { verb, resource, name, code, .. } = request;
    let what = match (verb.as_str(), resource.as_str()) {
        ("patch", "peerpods") if releases(request) => {
            format!("releases PeerPod {name}: removes its finalizers")
        }
        // The API server completes the name, and the audit log lacks it.
        ("create", "pods") => "creates a Pod".to_owned(),
        ("delete", "pods") => format!("deletes Pod {name}"),
        ("patch", "podsets/status") => format!("writes the status of PodSet {name}"),
        ("patch", "ptemplates/status") => format!("writes the status of Ptemplate {name}"),
        (_, "modules") => format!("{} Module {name}", object_verb(verb)),
        ("create", "peerpods") => format!("creates PeerPod {name}"),
        ("delete", "peerpods") => format!("deletes PeerPod {name}"),
        ("patch", "peerpods/status") => format!("writes the status of PeerPod {name}"),
        (_, "daemonsets") => format!("{} DaemonSet {name}", object_verb(verb)),
        (_, "mutatingadmissionpolicies") => format!("{} MutatingAdmissionPolicy {name}", object_verb(verb)),
        (_, "mutatingadmissionpolicybindings") => {
            format!("{} MutatingAdmissionPolicyBinding {name}", object_verb(verb))
        }
        _ => format!("asks to {verb} {resource} {name}"),
    };
    let answer = match code {
        200..300 => String::new(),
        _ => format!(" (and is answered {code})"),
    };
    what + &answer
}

/// The verb for an object of a `PeerPodConfig`.
fn object_verb(verb: &str) -> &str {
    match verb {
        // A server-side apply creates a missing object.
        "patch" => "applies",
        "delete" => "deletes",
        other => other,
    }
}

/// Whether the request is a JSON patch that removes all finalizers of an object.
pub(super) fn releases(request: &Request) -> bool {
    let removes = |change: &Value| change["op"] == "remove" && change["path"] == "/metadata/finalizers";
    request.body.as_array().is_some_and(|changes| changes.iter().any(removes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn request(user: &str, verb: &str, resource: &str, code: u16, body: Value) -> Fact {
        Fact::Write(Request {
            time: Timestamp::UNIX_EPOCH,
            answered: Timestamp::UNIX_EPOCH,
            user: user.into(),
            verb: verb.into(),
            resource: resource.into(),
            namespace: "shop".into(),
            name: "web-resource-x7k2p".into(),
            code,
            body,
        })
    }

    #[test]
    fn a_write_has_a_line_with_its_author() {
        let collector = "system:serviceaccount:kube-system:generic-garbage-collector";
        let deletion = request(collector, "delete", "peerpods", 200, Value::Null);
        let told = deletion.line().unwrap();
        assert_eq!(told, (Who::GarbageCollector, "deletes PeerPod web-resource-x7k2p".to_owned()));
    }

    #[test]
    fn a_patch_is_a_release_if_it_removes_the_finalizers() {
        let told =
            |body, code| request("x:peerpod-operator", "patch", "peerpods", code, body).line().unwrap().1;
        let test = json!({ "op": "test", "path": "/metadata/uid", "value": "u" });
        let remove = json!({ "op": "remove", "path": "/metadata/finalizers" });
        let name = "web-resource-x7k2p";
        let released = format!("releases PeerPod {name}: removes its finalizers");
        assert_eq!(told(json!([test, remove]), 200), released);
        assert_eq!(told(json!([remove]), 403), format!("{released} (and is answered 403)"));
        assert_eq!(told(json!([test]), 200), format!("asks to patch peerpods {name}"));
    }

    #[test]
    fn requests_that_another_line_covers_have_no_line() {
        assert!(request("kubernetes-admin", "delete", "peerpods", 200, Value::Null).line().is_none());
        assert!(request("x:peerpod-operator", "create", "events", 201, Value::Null).line().is_none());
    }
}
