//! IBM Power Virtual Server: a pod VM is a server of a workspace, whose boot volume is deleted with it.
//!
//! Requests of one deletion:
//!
//! ```text
//! describe  the server
//! delete    the server
//! describe  the server: it is being deleted, or there is none
//!           where there is none, all servers of the workspace
//! ```
//!
//! Data volumes that a user attached are detached and stay. The server itself shows that it is being deleted, so a restart of the
//! operator forgets nothing.
//!
//! # Which answers mean absence
//!
//! | answer | what it means here |
//! |---|---|
//! | 404 or 410 for the server, and the list of the recorded workspace without it | absence |
//! | 404 or 410 for the server, and no such list, or one with the server | nothing: a live server of another workspace looks so |
//! | any other error | nothing |

mod settings;
#[cfg(test)]
mod tests;

use std::{collections::HashSet, sync::Arc, time::Duration};

use async_trait::async_trait;
use hyper::{Method, StatusCode};
use jiff::Timestamp;
use serde::Deserialize;
use tokio::time::Instant;

use self::settings::Place;
pub use self::settings::Settings;
use super::{
    Accepted, Claim, Error, ErrorClass, Finding, IdProblem, InstanceId, Listed, OwnVm, POD_VM, Pages,
    ParsedId, PowerState, Provider, Resource, Vm,
    cloud::{Cloud, Opening},
    finding::{DELETE, LOOK_UP, look_up},
    http::{Authorized, Call, Options, Reply},
    ibm_iam::Iam,
    single_flight::SingleFlight,
};
use crate::settings::Values;

/// What differs from other clouds.
pub static CLOUD: Cloud = Cloud {
    chart_alias: Some("ibmcloudpowervs"),
    name_limit: 47,
    place: Some(settings::place),
    ..Cloud::new("ibmcloud-powervs", Settings::KEYS, settings::check, server, open)
};

/// The actions of IAM that deletions need, and no others.
pub const ACTIONS: [&str; 4] = [
    "power-iaas.cloud-instance.read",
    "power-iaas.pvm-instance.read",
    "power-iaas.pvm-instance.list",
    "power-iaas.pvm-instance.delete",
];

/// How long a server needs at least until it is deleted.
const DELETION: Duration = Duration::from_secs(10);

/// How long an answer may take. IBM's own client waits for two minutes; a call of a provider has one.
const PATIENCE: Duration = Duration::from_secs(50);

/// A caller that waited for another one's list for longer than this makes none: its minute would be too short for a slow one.
const LONGEST_WAIT: Duration = Duration::from_secs(10);

/// One workspace.
struct PowerVs {
    api: Authorized<Iam>,
    place: Place,
    /// The identifiers of the last whole list. Many deletions may end together, and a tenant may write thousands of PeerPods that name
    /// no server.
    listed: SingleFlight<Arc<HashSet<String>>>,
}

/// A VM.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Server {
    #[serde(rename = "pvmInstanceID")]
    id: String,
    #[serde(rename = "serverName")]
    name: String,
    status: String,
    #[serde(default)]
    task_state: String,
    #[serde(default)]
    creation_date: Option<Timestamp>,
}

/// All VMs of a workspace. Their key distinguishes the list from any other JSON, which would be an empty list.
#[derive(Deserialize)]
struct Servers {
    #[serde(rename = "pvmInstances")]
    all: Vec<Server>,
}

fn open(values: &Values, opening: &Opening<'_>) -> Result<Box<dyn Provider>, Error> {
    let place = opening.place(settings::check(values), "workspace", Place::recorded)?;
    let Settings { api_key, iam_endpoint, .. } = Settings::read(values);
    let iam = Iam::new(&iam_endpoint, api_key, None, opening)?;
    let api = Authorized::with(iam, Options { total: PATIENCE, ..Options::default() })?;
    Ok(Box::new(PowerVs { api, place, listed: SingleFlight::default() }))
}

fn server(raw: &str) -> Result<ParsedId, IdProblem> {
    ParsedId::uuid(raw).ok_or(IdProblem::Malformed { expected: "a server's identifier (a UUID)", hint: None })
}

impl Server {
    fn is_leaving(&self) -> bool {
        [&self.status, &self.task_state].iter().any(|state| state.eq_ignore_ascii_case("deleting"))
    }

    /// Whether it runs, as far as the server says.
    fn power(&self) -> PowerState {
        match self.status.to_ascii_uppercase().as_str() {
            _ if self.is_leaving() => PowerState::Leaving,
            "SHUTOFF" if self.task_state.eq_ignore_ascii_case("starting") => PowerState::Running,
            "ACTIVE" | "BUILD" | "REBOOT" | "HARD_REBOOT" => PowerState::Running,
            "SHUTOFF" => PowerState::Stopped,
            _ => PowerState::Unknown,
        }
    }

    fn is_being_built(&self) -> bool {
        self.status.eq_ignore_ascii_case("build")
    }

    fn listed(self) -> Listed {
        let (created, state) = (self.creation_date, self.power());
        Listed { created, state, ..Listed::new(Resource::Vm, self.id.to_lowercase(), self.name) }
    }
}

/// The reply if it is a success, else what it means. A status alone never means absence here.
fn accepted(reply: Reply) -> Result<Reply, Error> {
    reply.success_or(|reply| {
        let [error, description, message] = reply.texts([&["/error"], &["/description"], &["/message"]]);
        reply.error(&error.replace(' ', "-"), &format!("{description} {message}"), None)
    })
}

/// The identifiers of these servers, in the one spelling of [`server`].
fn ids(servers: Vec<Server>) -> HashSet<String> {
    servers.into_iter().map(|server| server.id.to_ascii_lowercase()).collect()
}

impl PowerVs {
    /// Asks about the servers of the workspace, or about one of them.
    async fn call(&self, doing: &'static str, method: Method, server: Option<&str>) -> Result<Reply, Error> {
        let Place { base, zone, workspace } = &self.place;
        let account = self.api.account().await?;
        let service = self.place.service();
        let crn = format!("crn:v1:bluemix:public:{service}:{zone}:a/{account}:{workspace}::");
        let server = server.map(|id| format!("/{id}")).unwrap_or_default();
        let url = format!("{base}/pcloud/v1/cloud-instances/{workspace}/pvm-instances{server}");
        let call = Call::to(doing, method, &url)?.header("accept", "application/json")?;
        self.api.send(call.header("crn", &crn)?).await
    }

    /// All servers of the workspace.
    async fn servers(&self, doing: &'static str) -> Result<Vec<Server>, Error> {
        let reply = accepted(self.call(doing, Method::GET, None).await?);
        let advice = "see POWERVS_SERVICE_INSTANCE_ID and POWERVS_ZONE";
        let reply = reply.map_err(|error| error.advising_on(ErrorClass::Invalid, advice))?;
        Ok(reply.json::<Servers>()?.all)
    }

    async fn examined_servers(&self) -> Result<Vec<Finding>, Error> {
        let listed = look_up(self, "the workspace has", "server").await?;
        let why = format!("only a deletion shows whether the credentials have {}", ACTIONS[3]);
        Ok(vec![Finding::tried(LOOK_UP, listed), Finding::untried(DELETE, why)])
    }

    async fn find(&self, id: &InstanceId) -> Result<Server, Error> {
        let reply = self.call("reading the server", Method::GET, Some(id.as_str())).await?;
        if [StatusCode::NOT_FOUND, StatusCode::GONE].contains(&reply.status) {
            // A long answer would keep the list waiting for its turn.
            drop(reply);
            return Err(self.missing(id).await);
        }
        let reply = accepted(reply)?;
        let server: Server = reply.json()?;
        if server.id.eq_ignore_ascii_case(id.as_str()) {
            return Ok(server);
        }
        Err(reply.unreadable("server", "it has another identifier"))
    }

    /// What it means that the workspace does not show a server. The server is absent only if the workspace's own list is without
    /// it.
    async fn missing(&self, id: &InstanceId) -> Error {
        let list = async {
            let servers = self.servers("looking for the server in its workspace").await?;
            Ok(Arc::new(ids(servers)))
        };
        let late = "another list of the workspace took long; the operator looks again";
        // Boxed, as a future this large would be held twice.
        match self.listed.after(Instant::now(), LONGEST_WAIT, late, Box::pin(list)).await {
            Err(error) => error,
            Ok(listed) if listed.contains(id.as_str()) => {
                let message = "the workspace lists the VM, but does not show it";
                Error::new(ErrorClass::Transient, message)
            }
            Ok(_) => Error::new(ErrorClass::NotFound, "the workspace has no such VM"),
        }
    }
}

#[async_trait]
impl Provider for PowerVs {
    async fn describe(&self, id: &InstanceId, _: &Claim) -> Result<Vm, Error> {
        Ok(self.find(id).await?.listed().described(id))
    }

    async fn delete(&self, vm: &OwnVm) -> Result<Accepted, Error> {
        let id = &vm.vm().id;
        let reply = self.call("deleting the server", Method::DELETE, Some(id.as_str())).await?;
        let refused = match accepted(reply) {
            Ok(_) => return Ok(Accepted::after(DELETION)),
            Err(error) if matches!(error.class, ErrorClass::Unauthorized | ErrorClass::Throttled { .. }) => {
                return Err(error);
            }
            Err(refused) => refused,
        };
        // Power Virtual Server has no specific answer for what it cannot delete now: the server says why.
        let server = self.find(id).await?;
        if server.is_leaving() {
            return Ok(Accepted::after(DELETION));
        }
        if server.is_being_built() {
            let why = "the VM is still being built, and can be deleted afterwards";
            return Err(Error { class: ErrorClass::Transient, ..refused }.advising(why));
        }
        Err(refused)
    }

    async fn list(&self, pages: Pages<'_>) -> Result<(), Error> {
        let servers = self.servers("listing the servers").await?.into_iter();
        pages(servers.filter(|server| server.name.starts_with(POD_VM)).map(Server::listed).collect());
        Ok(())
    }

    async fn identity(&self) -> Result<Option<String>, Error> {
        self.api.account().await.map(Some)
    }

    fn most_at_once(&self) -> Option<usize> {
        self.api.most_at_once()
    }

    async fn examine(&self) -> Result<Vec<Finding>, Error> {
        self.api.examine(&[LOOK_UP, DELETE], async || self.examined_servers().await).await
    }
}
