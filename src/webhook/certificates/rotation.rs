//! The leading replica creates and renews the certificate *(client required)*.
//!
//! The operator's controller applies the webhook configurations, which trust the Secret's authorities. This module only reads them,
//! so the webhook needs no right to change anything outside its namespace.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use futures::{Stream, StreamExt, pin_mut};
use jiff::Timestamp;
use k8s_openapi::{
    ByteString,
    api::{
        admissionregistration::v1::{MutatingWebhook, MutatingWebhookConfiguration},
        core::v1::Secret,
    },
};
use kube::{Api, Client, ResourceExt, api::PostParams, runtime::watcher};
use operator_kit::{
    Leadership, Permission,
    api_call::{ApiError, bounded},
    watch::{backing_off, text},
};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::managed_secret::{AUTHORITIES, IssueError, ManagedSecret, Step, Wanted};
use crate::{
    api::v1alpha1::FIELD_MANAGER,
    names::{COMPONENT_LABEL, NAME_LABEL, OPERATOR, WEBHOOK_COMPONENT},
    webhook::PATH,
};

/// The default name of the Secret: upstream's.
pub const SECRET: &str = "webhook-server-cert";

/// The Lease of the replica that rotates the certificate.
pub const LEASE: &str = "peerpod-webhook";

/// The labels of the webhook configurations that the operator creates. By default these must trust a certificate before it is served.
pub fn configurations() -> String {
    format!("{NAME_LABEL}={OPERATOR},{COMPONENT_LABEL}={WEBHOOK_COMPONENT}")
}

/// What the webhook may do in its namespace. A Secret of another name needs a role of its own. The webhook may create neither
/// object, because the right to create Secrets gives access to the token of any ServiceAccount in the namespace.
pub const PERMISSIONS: &[Permission] = &[
    Permission::new("", &["secrets"], &["get", "list", "watch", "update"]).named(&[SECRET]),
    Permission::new("coordination.k8s.io", &["leases"], &["get", "list", "watch", "update"]).named(&[LEASE]),
];

/// What it may do in the whole cluster: read, not change. The names of the configurations depend on each PeerPodConfig.
pub const CLUSTER_PERMISSIONS: &[Permission] = &[Permission::new(
    "admissionregistration.k8s.io",
    &["mutatingwebhookconfigurations"],
    &["list", "watch"],
)];

/// The longest pause, because timers do not notice when the wall clock is set.
pub(super) const LONGEST_PAUSE: Duration = Duration::from_secs(3600);

/// The delay after a failure.
const RETRY: Duration = Duration::from_secs(2);

/// Rotates the certificate.
#[derive(Clone)]
pub struct Rotation {
    client: Client,
    namespace: String,
    secret: String,
    configurations: String,
    wanted: Wanted,
}

/// What the leader knows.
#[derive(Default)]
struct Known {
    /// The Secret, if it exists and was read.
    secret: Option<Secret>,
    /// Its last content, if it is managed here.
    managed: Option<ManagedSecret>,
    /// The webhook configurations, after all were listed.
    configurations: Option<HashMap<String, MutatingWebhookConfiguration>>,
    /// The configurations of a list that is still arriving.
    listed: HashMap<String, MutatingWebhookConfiguration>,
    /// The authorities that all configurations trust, and since when.
    trusted: Option<(ByteString, Instant)>,
    /// Whether the log already says that the operator does not manage the Secret.
    unmanaged: bool,
}

/// Why the rotation failed.
#[derive(Debug, thiserror::Error)]
enum RotationError {
    #[error(transparent)]
    Api(#[from] ApiError),
    #[error(transparent)]
    Issue(#[from] IssueError),
}

impl Rotation {
    /// Rotates the certificate in the Secret of this name in this namespace, for the webhook configurations with these labels.
    pub fn new(client: Client, namespace: &str, secret: &str, configurations: &str, wanted: Wanted) -> Self {
        let (namespace, secret) = (namespace.to_owned(), secret.to_owned());
        Self { client, namespace, secret, configurations: configurations.to_owned(), wanted }
    }

    /// Runs whenever this process leads, until `stop`.
    pub async fn run(self, leadership: Leadership, stop: CancellationToken) {
        stop.run_until_cancelled(leadership.each_term(|| Box::pin(self.lead()), || ())).await;
    }

    /// Runs as the leader, without end.
    async fn lead(&self) {
        let secrets = backing_off(watcher::watch_object(self.secrets(), &self.secret));
        let selected = watcher::Config::default().labels(&self.configurations);
        let configurations = backing_off(watcher(self.configurations(), selected));
        pin_mut!(secrets, configurations);
        let mut known = Known::default();
        loop {
            let pause = match self.step(&mut known).await {
                Ok(pause) => pause,
                Err(problem) => {
                    warn!(secret = self.secret, %problem, "maintaining the certificate failed; the webhook tries again");
                    RETRY
                }
            };
            tokio::select! {
                () = known.next_event(&mut secrets, &mut configurations) => {}
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// Does the next step. Returns when to check again without an event.
    async fn step(&self, known: &mut Known) -> Result<Duration, RotationError> {
        let Some(secret) = known.secret.clone() else { return Ok(LONGEST_PAUSE) };
        let unmanaged = !ManagedSecret::is_ours(&secret);
        if unmanaged && !known.unmanaged {
            info!(
                secret = self.secret,
                "the operator did not create this Secret: the webhook uses its certificate and does not \
                 renew it"
            );
        }
        known.unmanaged = unmanaged;
        if unmanaged {
            known.managed = None;
            return Ok(LONGEST_PAUSE);
        }
        if let Some(authorities) = authorities(&secret) {
            known.note_trust(authorities);
        }
        let now = Timestamp::now();
        let settled = known.settled_in(self.wanted.settling());
        let step = ManagedSecret::next_step(&secret, known.managed.as_ref(), &self.wanted, settled, now)?;
        known.managed = ManagedSecret::read(&secret).or(known.managed.take());
        match step {
            Step::Wait(until) => Ok(pause(until, now)),
            // A configuration that never trusts the next certificate must not keep an expired one in use.
            Step::Settle(until) => Ok(known.settles_in(self.wanted.settling()).min(pause(until, now))),
            Step::Write(managed) => {
                let written = self.write(&managed, &secret).await?;
                info!(secret = self.secret, "wrote the certificate's Secret");
                known.managed = Some(managed);
                known.secret = Some(written);
                Ok(Duration::ZERO)
            }
        }
    }

    /// Replaces exactly what was read.
    async fn write(&self, managed: &ManagedSecret, before: &Secret) -> Result<Secret, ApiError> {
        let params = PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
        bounded(self.secrets().replace(&self.secret, &params, &managed.secret(before))).await
    }

    fn secrets(&self) -> Api<Secret> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    fn configurations(&self) -> Api<MutatingWebhookConfiguration> {
        Api::all(self.client.clone())
    }
}

impl Known {
    /// Applies the next event.
    async fn next_event(
        &mut self,
        secrets: &mut (impl Stream<Item = watcher::Result<Option<Secret>>> + Unpin),
        configurations: &mut (
                 impl Stream<Item = watcher::Result<watcher::Event<MutatingWebhookConfiguration>>> + Unpin
             ),
    ) {
        tokio::select! {
            Some(secret) = secrets.next() => match secret {
                Ok(secret) => self.secret = secret,
                Err(error) => {
                    warn!(problem = text(&error), "the watch of the certificate's Secret failed; the webhook tries again");
                }
            },
            Some(event) = configurations.next() => match event {
                Ok(event) => self.take(event),
                Err(error) => {
                    warn!(problem = text(&error), "the watch of webhook configurations failed; the webhook tries again");
                }
            },
        }
    }

    fn take(&mut self, event: watcher::Event<MutatingWebhookConfiguration>) {
        let all = self.configurations.as_mut().unwrap_or(&mut self.listed);
        match event {
            watcher::Event::Init => self.listed.clear(),
            watcher::Event::InitApply(configuration) => {
                self.listed.insert(configuration.name_any(), configuration);
            }
            watcher::Event::InitDone => self.configurations = Some(std::mem::take(&mut self.listed)),
            watcher::Event::Apply(configuration) => {
                all.insert(configuration.name_any(), configuration);
            }
            watcher::Event::Delete(configuration) => {
                all.remove(&configuration.name_any());
            }
        }
    }

    /// Notes since when all configurations have trusted these authorities.
    fn note_trust(&mut self, authorities: &ByteString) {
        let all = self.configurations.as_ref();
        if !all.is_some_and(|all| all.values().all(|configuration| trusts(configuration, authorities))) {
            self.trusted = None;
        } else if self.trusted.as_ref().is_none_or(|(trusted, _)| trusted != authorities) {
            info!("all webhook configurations trust the certificate's authorities");
            self.trusted = Some((authorities.clone(), Instant::now()));
        }
    }

    /// Whether the authorities have been trusted for this long.
    fn settled_in(&self, settling: Duration) -> bool {
        self.settles_in(settling).is_zero()
    }

    /// How long until [`Self::settled_in`] is true.
    fn settles_in(&self, settling: Duration) -> Duration {
        self.trusted.as_ref().map_or(LONGEST_PAUSE, |(_, since)| settling.saturating_sub(since.elapsed()))
    }
}

/// How long to wait for this moment at once.
fn pause(until: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(until.duration_since(now)).unwrap_or_default().min(LONGEST_PAUSE)
}

/// The authorities in a Secret, if there are any, which the webhook configurations must trust.
pub fn authorities(secret: &Secret) -> Option<&ByteString> {
    secret.data.as_ref()?.get(AUTHORITIES).filter(|authorities| !authorities.0.is_empty())
}

/// Whether the webhooks of a configuration that are served here trust these authorities.
fn trusts(configuration: &MutatingWebhookConfiguration, authorities: &ByteString) -> bool {
    let served_here = |webhook: &&MutatingWebhook| {
        let client = &webhook.client_config;
        let path = client.service.as_ref().and_then(|service| service.path.as_deref());
        path == Some(PATH) || client.url.as_ref().is_some_and(|url| url.ends_with(PATH))
    };
    let mut served = configuration.webhooks.iter().flatten().filter(served_here);
    served.all(|webhook| webhook.client_config.ca_bundle.as_ref() == Some(authorities))
}

#[cfg(test)]
mod tests {
    use operator_kit::testing::{Answer, ApiServer, Call};
    use serde_json::json;

    use super::{
        super::managed_secret::{CERTIFICATE, blank},
        *,
    };

    fn configuration(name: &str, bundles: &[Option<&str>]) -> MutatingWebhookConfiguration {
        let webhook = |bundle: Option<&str>| {
            let bundle = bundle.map(|text| ByteString(text.into()));
            let service = json!({ "name": "x", "namespace": "ns", "path": PATH });
            json!({ "name": "x", "admissionReviewVersions": ["v1"], "sideEffects": "None",
                "clientConfig": { "service": service, "caBundle": bundle } })
        };
        let webhooks: Vec<_> = bundles.iter().copied().map(webhook).collect();
        serde_json::from_value(json!({ "metadata": { "name": name }, "webhooks": webhooks })).unwrap()
    }

    #[test]
    fn authorities_are_trusted_from_when_every_configuration_does() {
        let (old, both) = (ByteString(b"old".to_vec()), ByteString(b"old+new".to_vec()));
        let mut known = Known::default();
        let mut trusted_after = |event, authorities| {
            known.take(event);
            known.note_trust(authorities);
            known.settled_in(Duration::ZERO)
        };
        let apply = |name, bundles| watcher::Event::Apply(configuration(name, bundles));
        assert!(!trusted_after(watcher::Event::Init, &old), "none was seen");
        assert!(!trusted_after(watcher::Event::InitApply(configuration("a", &[Some("old")])), &old));
        assert!(trusted_after(watcher::Event::InitDone, &old));
        assert!(!trusted_after(apply("b", &[Some("old"), None]), &old), "one knows of none");
        assert!(trusted_after(apply("b", &[Some("old"), Some("old")]), &old));
        assert!(!trusted_after(apply("a", &[Some("old+new")]), &both), "the other one does not");
        assert!(trusted_after(apply("b", &[Some("old+new"), Some("old+new")]), &both));
        assert!(!trusted_after(apply("a", &[Some("other")]), &both), "another program changed it");
        assert!(trusted_after(watcher::Event::Delete(configuration("a", &[])), &both));
    }

    #[tokio::test]
    async fn a_write_that_fails_forgets_no_certificate_that_is_in_use() {
        const PATH: &str = "/api/v1/namespaces/ns/secrets/s";
        let wanted = Wanted { names: vec!["a.ns.svc".to_owned()], lifetime: Duration::from_secs(86_400) };
        let rotation = |server: &ApiServer| Rotation::new(server.client(), "ns", "s", "", wanted.clone());
        let mut known = Known { secret: Some(blank("s")), ..Known::default() };
        let server = ApiServer::expecting([Call::put(PATH).answer(Answer::as_sent())]);
        rotation(&server).step(&mut known).await.unwrap();
        // The Secret is deleted, and the operator creates another one.
        let in_use = known.secret.replace(blank("s")).unwrap().data.unwrap()[CERTIFICATE].clone();
        let stays = json!({ "data": { CERTIFICATE: in_use } });
        let server = ApiServer::expecting([
            Call::put(PATH).answer(Answer::conflict("secrets", "s")),
            Call::put(PATH).body_with(stays).answer(Answer::as_sent()),
        ]);
        rotation(&server).step(&mut known).await.unwrap_err();
        rotation(&server).step(&mut known).await.unwrap();
    }
}
