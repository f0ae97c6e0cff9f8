//! Docker, where containers stand for VMs: for tests alone.
//!
//! Requests of one deletion:
//!
//! ```text
//! describe  the container
//! delete    the container, by force, with its anonymous volumes: Docker answers when it is done
//! describe  there is none; and the daemon is still the same one
//! ```

mod settings;

use std::{collections::BTreeMap, time::Duration};

use async_trait::async_trait;
use hyper::{Method, header};
use jiff::Timestamp;
use operator_kit::Message;
use serde::Deserialize;
use serde_json::{Value, json};

pub use self::settings::Settings;
use super::{
    Accepted, Claim, Error, ErrorClass, Finding, IdProblem, InstanceId, Listed, OwnVm, POD_VM, Pages,
    ParsedId, PowerState, Provider, Resource, Stage, Vm,
    account::ExpectedIdentity,
    cloud::{AdaptorVolume, Cloud, Opening, VolumeSource},
    cluster_proof::cluster_uid,
    finding::look_up,
    http::{Call, Client, Reply, encoded, is_untrusted},
};
use crate::settings::Values;

/// What differs from other clouds.
pub static CLOUD: Cloud = Cloud {
    caveat: Some("cloud-api-adaptor supports docker in its development images up to v0.21.1-dev alone."),
    settles_late: false,
    volumes: &[
        // Where DOCKER_HOST is another host this one has no socket.
        AdaptorVolume { name: "docker-socket", path: "/var/run/docker.sock", source: VolumeSource::HostPath },
        AdaptorVolume { name: "docker-dir", path: "/var/lib/docker", source: VolumeSource::HostPath },
    ],
    place: Some(settings::place),
    ..Cloud::new("docker", Settings::KEYS, settings::check, container, open)
};

/// How long Docker may take for a removal that another client began.
const REMOVAL: Duration = Duration::from_secs(2);

/// The identifier of no container.
const NONE: &str = "0000000000000000000000000000000000000000000000000000000000000000";

/// One daemon.
struct Docker {
    client: Client,
    /// The URL of its API, with the version.
    base: String,
    /// The identifier that it must have.
    expected: ExpectedIdentity,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Container {
    id: String,
    name: String,
    created: String,
    state: State,
    #[serde(default)]
    config: Config,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct State {
    status: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Config {
    labels: Option<BTreeMap<String, String>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Summary {
    id: String,
    /// None for a container that Docker has half removed.
    names: Option<Vec<String>>,
    created: i64,
    #[serde(default)]
    state: String,
    labels: Option<BTreeMap<String, String>>,
}

impl Summary {
    fn listed(self) -> Listed {
        let name = self.names.as_ref().and_then(|names| names.first());
        let name = name.map_or("", |name| name.trim_start_matches('/')).to_owned();
        Listed {
            created: Timestamp::from_second(self.created).ok(),
            state: power(&self.state),
            tags: self.labels.into_iter().flatten().collect(),
            ..Listed::new(Resource::Vm, self.id, name)
        }
    }
}

/// A container that was created or paused does not start by itself.
fn power(state: &str) -> PowerState {
    match state {
        "running" | "restarting" => PowerState::Running,
        "created" | "paused" | "exited" | "dead" => PowerState::Stopped,
        "removing" => PowerState::Leaving,
        _ => PowerState::Unknown,
    }
}

fn open(values: &Values, opening: &Opening<'_>) -> Result<Box<dyn Provider>, Error> {
    let settings = Settings::read(values);
    let authority = |address: &str| Settings::authority(address).map(str::to_owned);
    let authority = opening.place(settings::check(values), "Docker daemon", authority)?;
    let scheme = if settings.certificates.is_some() { "https" } else { "http" };
    let base = format!("{scheme}://{authority}/v{}", settings.version);
    Ok(Box::new(Docker {
        client: Client::new(settings.options()?)?,
        base,
        expected: ExpectedIdentity::of(opening),
    }))
}

/// Takes what can be part of a URL. Docker would find a container by its name, too, or by a part of its identifier, which is
/// refused when it is described.
fn container(raw: &str) -> Result<ParsedId, IdProblem> {
    let known = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
    let is_id = raw.starts_with(|first: char| first.is_ascii_alphanumeric());
    let malformed = IdProblem::Malformed { expected: "a container's identifier", hint: None };
    if is_id && raw.len() <= 128 && raw.bytes().all(known) {
        Ok(ParsedId::unscoped(raw))
    } else {
        Err(malformed)
    }
}

/// The reply if it is a success, else what it means. Only a reply that says that this very container does not exist is
/// [`ErrorClass::NotFound`].
fn accepted(reply: Reply, container: &str) -> Result<Reply, Error> {
    reply.success_or(|reply| {
        let [message] = reply.texts([&["/message"]]);
        let text = message.to_ascii_lowercase();
        let is_absent = reply.status == 404
            && !container.is_empty()
            && text.contains("no such container")
            && message.contains(container);
        reply.error("", &message, is_absent.then_some(ErrorClass::NotFound))
    })
}

impl Docker {
    async fn call(&self, doing: &'static str, method: Method, path: &str) -> Result<Reply, Error> {
        let call = Call::to(doing, method, &format!("{}/{path}", self.base))?;
        self.client.send(call).await.map_err(|error| match error.class {
            ErrorClass::Invalid if is_untrusted(&error) => {
                error.advising("or put it into ca.pem in DOCKER_CERT_PATH, then restart the operator")
            }
            ErrorClass::Unauthorized => {
                let advice = "the daemon must trust the authority of cert.pem in DOCKER_CERT_PATH; after a change of that file, restart \
                              the operator";
                error.advising(advice)
            }
            _ => error,
        })
    }

    async fn remove(&self, doing: &'static str, id: &str) -> Result<Reply, Error> {
        let path = format!("containers/{id}?force=true&v=true");
        accepted(self.call(doing, Method::DELETE, &path).await?, id)
    }

    async fn pod_vms(&self) -> Result<Vec<Summary>, Error> {
        let filters = json!({ "name": [POD_VM] }).to_string();
        let path = format!("containers/json?{}", encoded([("all", "true"), ("filters", &*filters)]));
        accepted(self.call("listing the containers", Method::GET, &path).await?, "")?.json()
    }

    /// The identifier that Docker draws once for its data. Podman, which speaks the same protocol, draws one for each answer.
    async fn daemon(&self) -> Result<Option<String>, Error> {
        let reply = accepted(self.call("asking which daemon it is", Method::GET, "info").await?, "")?;
        let server = reply.headers.get(header::SERVER).and_then(|server| server.to_str().ok());
        if !server.is_some_and(|server| server.starts_with("Docker/")) {
            return Ok(None);
        }
        let id = reply.json::<Value>()?["ID"].as_str().unwrap_or_default().to_owned();
        Ok(Some(id).filter(|id| !id.is_empty()))
    }

    /// Fails unless the daemon is the expected one: another daemon has none of its containers.
    async fn ensure_expected(&self) -> Result<(), Error> {
        if !self.expected.is_known() || self.expected.accepts(self.daemon().await?.as_deref()) {
            return Ok(());
        }
        let message = "another Docker daemon answers at DOCKER_HOST than before";
        Err(Error::new(ErrorClass::Transient, message))
    }
}

#[async_trait]
impl Provider for Docker {
    async fn describe(&self, id: &InstanceId, _: &Claim) -> Result<Vm, Error> {
        let reply =
            self.call("looking up the container", Method::GET, &format!("containers/{id}/json")).await?;
        let reply = match accepted(reply, id.as_str()) {
            Err(gone) if gone.class == ErrorClass::NotFound => {
                self.ensure_expected().await?;
                return Err(gone);
            }
            reply => reply?,
        };
        let container: Container = reply.json()?;
        if container.id.is_empty() {
            return Err(reply.unreadable("container", "it has no Id"));
        }
        if container.id != id.as_str() {
            let message = "spec.instanceID is a container's name or the beginning of its identifier, not its identifier";
            return Err(Error::new(ErrorClass::Refused, message));
        }
        Ok(Vm {
            created: container.created.parse().ok(),
            cluster_uid: cluster_uid(container.config.labels.into_iter().flatten()),
            stage: if container.state.status == "removing" { Stage::Leaving } else { Stage::Present },
            ..Vm::named(id.clone(), container.name.trim_start_matches('/'))
        })
    }

    async fn delete(&self, vm: &OwnVm) -> Result<Accepted, Error> {
        match self.remove("removing the container", vm.vm().id.as_str()).await {
            // Another client may be removing it. If not, the container is still there, and the operator asks for its removal
            // again.
            Err(refused) if refused.class == ErrorClass::Refused => Ok(Accepted::after(REMOVAL)),
            removed => removed.map(|_| Accepted::default()),
        }
    }

    async fn list(&self, pages: Pages<'_>) -> Result<(), Error> {
        let listed = self.pod_vms().await?.into_iter().map(Summary::listed);
        // Another daemon's containers may be another cluster's.
        self.ensure_expected().await?;
        pages(listed.filter(|it| it.name.starts_with(POD_VM)).collect());
        Ok(())
    }

    async fn identity(&self) -> Result<Option<String>, Error> {
        self.daemon().await
    }

    fn most_at_once(&self) -> Option<usize> {
        self.client.most_at_once()
    }

    async fn examine(&self) -> Result<Vec<Finding>, Error> {
        let listed = look_up(self, "the daemon has", "container").await?;
        // No container has this identifier, and Docker looks for it after it has asked for the right.
        let removed = match self.remove("removing a container that does not exist", NONE).await {
            Err(gone) if gone.class == ErrorClass::NotFound => Ok("removals are allowed".to_owned()),
            Err(error) => Err(error),
            Ok(_) => {
                let message = "the daemon says that it removed a container that cannot exist";
                Err(Error::new(ErrorClass::Invalid, Message::public(message)))
            }
        };
        Ok(vec![Finding::tried("look up containers", listed), Finding::tried("remove containers", removed)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_container_without_names_is_listed_as_no_pod_vm() {
        let text = r#"[
            { "Id": "a", "Names": null, "Created": 1, "State": "dead", "Labels": null },
            { "Id": "b", "Names": ["/podvm-web-1a2b3c4d"], "Created": 1, "State": "running", "Labels": {} }
        ]"#;
        let all: Vec<Summary> = serde_json::from_str(text).unwrap();
        let names: Vec<_> = all.into_iter().map(|it| it.listed().name).collect();
        assert_eq!(names, ["", "podvm-web-1a2b3c4d"]);
    }

    #[test]
    fn a_state_says_whether_a_container_runs_as_long_as_it_is_known() {
        for (states, expected) in [
            (&["running", "restarting"][..], PowerState::Running),
            (&["created", "paused", "exited", "dead"], PowerState::Stopped),
            (&["removing"], PowerState::Leaving),
            (&["", "initialized"], PowerState::Unknown),
        ] {
            for state in states {
                assert_eq!(power(state), expected, "{state}");
            }
        }
    }
}
