//! Amazon EC2, simulated by moto, behind a relay that can disturb requests.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, Ordering::Relaxed},
};

use anyhow::Context as _;
use async_trait::async_trait;
use peerpod_operator::provider::{
    Cloud, Error, Provider, aws,
    contract::{Behavior, Cannot, Example, Kind, Left, Peer},
};
use peers::{Does, HttpRelay, Seen, aws::Moto};
use tempfile::TempDir;

use super::failed;
use crate::{Settings, vm_name};

pub(super) struct Aws {
    moto: Moto,
    relay: HttpRelay,
    pub(super) settings: Settings,
    /// An instance whose termination was accepted but not done.
    later: Mutex<Option<String>>,
    _dir: TempDir,
}

impl Aws {
    pub(super) async fn start() -> anyhow::Result<Self> {
        let dir = tempfile::tempdir().context("making a folder")?;
        let moto = Moto::start(dir.path()).await?;
        let relay = HttpRelay::start(moto.api()).await?;
        // The operator has only the rights that its documentation asks for.
        let (id, secret) = moto.user(aws::POLICY).await?;
        let settings = Settings::aws(relay.address(), Some((id, secret)));
        Ok(Self { moto, relay, settings, later: Mutex::default(), _dir: dir })
    }

    fn refuse(&self, when: impl Fn(&Seen) -> bool + Send + Sync + 'static, status: u16, code: &str) {
        let body = format!(
            "<Response><Errors><Error><Code>{code}</Code><Message>no</Message></Error></Errors>\
             <RequestID>r-1</RequestID></Response>"
        );
        self.relay.rule(when, Does::Answer { status, headers: Vec::new(), body });
    }
}

/// Whether a request is for this action.
fn action(action: &'static str) -> impl Fn(&Seen) -> bool {
    move |seen| seen.body.split('&').any(|part| part.strip_prefix("Action=") == Some(action))
}

/// The provider remembers whose its credentials are, so that request does not count.
fn is_about_vms(seen: &Seen) -> bool {
    !action("GetCallerIdentity")(seen)
}

#[async_trait]
impl Peer for Aws {
    fn cloud(&self) -> &Cloud {
        &aws::CLOUD
    }

    fn open(&self) -> Result<Box<dyn Provider>, Error> {
        self.settings.open()
    }

    async fn make(&self, kind: Kind, pod: &str) -> Result<Example, Cannot> {
        let name = vm_name(pod);
        let (name, kind) = match kind {
            Kind::Running => (name, "running"),
            Kind::Stopped => (name, "stopped"),
            Kind::Foreign => (format!("database-{name}"), "bare"),
            Kind::WithUserData => (name, "data"),
            Kind::Remains => (name, "remains"),
            Kind::InAnotherScope => {
                return Err(Cannot::Here("an instance's identifier says nothing of its region"));
            }
        };
        let id = self.moto.make(&name, kind).await.map_err(failed)?;
        Ok(Example { id, name })
    }

    async fn left(&self, example: &Example) -> Result<Left, Cannot> {
        let left = self.moto.left(&example.id).await.map_err(failed)?;
        let belongings = usize::try_from(left.belongings)?;
        Ok(Left { vm: left.vm, belongings, user_data: left.user_data })
    }

    async fn remove(&self, example: &Example) -> Result<(), Cannot> {
        self.moto.remove(&example.id).await.map_err(failed)
    }

    async fn behave(&self, behavior: Behavior, example: &Example) -> Result<(), Cannot> {
        match behavior {
            Behavior::Well => {
                self.relay.forget_rules();
                let later = self.later.lock().map_err(|_| "a test panicked")?.take();
                if let Some(instance) = later {
                    self.moto.remove(&instance).await.map_err(failed)?;
                }
            }
            Behavior::Unauthorized => self.refuse(is_about_vms, 401, "AuthFailure"),
            Behavior::Throttled => self.refuse(is_about_vms, 503, "RequestLimitExceeded"),
            Behavior::Hangs => self.relay.rule(|_| true, Does::Hang),
            Behavior::DeletesLater => {
                *self.later.lock().map_err(|_| "a test panicked")? = Some(example.id.clone());
                let terminating = Arc::new(AtomicBool::new(false));
                let accepted = Arc::clone(&terminating);
                let accepts = move |seen: &Seen| {
                    let accepts = action("TerminateInstances")(seen);
                    accepted.fetch_or(accepts, Relaxed);
                    accepts
                };
                let answer = |body| Does::Answer { status: 200, headers: Vec::new(), body };
                self.relay.rule(accepts, answer("<TerminateInstancesResponse/>".to_owned()));
                let instance = format!(
                    "<DescribeInstancesResponse><reservationSet><item><instancesSet><item><instanceId>{}</instanceId>\
                     <instanceState><name>shutting-down</name></instanceState><tagSet><item><key>Name</key><value>{}</value>\
                     </item></tagSet></item></instancesSet></item></reservationSet></DescribeInstancesResponse>",
                    example.id, example.name
                );
                let shows = move |seen: &Seen| terminating.load(Relaxed) && action("DescribeInstances")(seen);
                self.relay.rule(shows, answer(instance));
            }
            Behavior::HoldsBelongings => {
                self.refuse(action("ReleaseAddress"), 400, "DependencyViolation");
                self.refuse(action("DeleteNetworkInterface"), 400, "DependencyViolation");
            }
            Behavior::NotYetShown => {
                self.refuse(action("DescribeInstances"), 400, "InvalidInstanceID.NotFound");
            }
            // By then the instances have been listed.
            Behavior::CutsListsOff => self.relay.rule(action("DescribeTags"), Does::CutOff),
        }
        Ok(())
    }
}
