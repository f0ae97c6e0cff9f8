//! Makes a registration trust the authorities in the Secret *(client required)*.

use std::time::Instant;

use k8s_openapi::api::admissionregistration::v1::{MutatingWebhookConfiguration, ServiceReference};
use kube::{
    Api, Resource as _, ResourceExt,
    api::{Patch, PatchParams},
};
use operator_kit::api_call::{ApiError, bounded, get_opt, if_unchanged};
use serde_json::json;
use tracing::info;

use super::WebhookResources;
use crate::{
    api::v1alpha1::{FIELD_MANAGER, PeerPodConfig},
    peerpodconfig::{
        drift::Key,
        resources::{Names, webhook::WEBHOOK},
    },
};

impl WebhookResources {
    /// If a configuration has a registration: makes it trust the authorities in the Secret, and changes nothing else of it.
    ///
    /// The webhook renews its certificate, whatever the operator can write. When the former certificate expires, API servers that do
    /// not trust the next one refuse every peer pod. The rest of a registration must fit its server. The authorities need not.
    pub(in super::super) async fn trust(&self, config: &PeerPodConfig) -> Result<(), ApiError> {
        let Some(authorities) = self.watched.authorities() else { return Ok(()) };
        let api: Api<MutatingWebhookConfiguration> = Api::all(self.client.clone());
        let name = Names::of(config).cluster_scoped;
        let kind = MutatingWebhookConfiguration::kind(&()).into_owned();
        // Not the key of the whole object: each of the two contents would be new to the other, and new content need not wait.
        let key = Key { config: Some(config.name_any()), kind, name: format!("{name} (caBundle)") };
        let Some(present) = get_opt(&api, &name).await? else { return Ok(()) };
        let is_ours = present.managed_fields().iter().any(|it| it.manager.as_deref() == Some(FIELD_MANAGER));
        let mut webhooks = present.webhooks.iter().flatten().filter(|webhook| webhook.name == WEBHOOK);
        // In another namespace, another Secret is in use.
        let is_here = |service: &ServiceReference| service.namespace == self.namespace;
        let own = webhooks.find(|it| is_ours && it.client_config.service.as_ref().is_some_and(is_here));
        let Some(webhook) = own else { return Ok(()) };
        if webhook.client_config.ca_bundle.as_ref() == Some(&authorities) {
            self.drifts.settled(&key);
            return Ok(());
        }
        if !self.drifts.admit(&key, &authorities.0, Instant::now()) {
            return Ok(());
        }
        info!(name, "updating the authorities that the webhook's registration trusts");
        let webhooks = json!([{ "name": WEBHOOK, "clientConfig": { "caBundle": authorities } }]);
        let patch = json!({ "metadata": { "uid": present.uid() }, "webhooks": webhooks });
        let params = PatchParams::apply(FIELD_MANAGER);
        let patched = bounded(api.patch_metadata(&name, &params, &Patch::Strategic(patch))).await;
        if patched.is_err() {
            self.drifts.not_written(&key);
        }
        if_unchanged(&name, patched).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use operator_kit::testing::{Answer, ApiServer, Call};

    use super::*;
    use crate::api::v1alpha1::PeerPodConfigSpec;

    const PATH: &str = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/peer-pods-config";

    /// A read of the registration: it was written by this manager, leads to a Service in this namespace and trusts this, in Base64.
    fn read(manager: &str, namespace: &str, trusted: Option<&str>) -> Call {
        let client = json!({
            "caBundle": trusted, "service": { "name": "config-webhook", "namespace": namespace },
        });
        let webhook = json!({
            "name": WEBHOOK, "admissionReviewVersions": ["v1"], "sideEffects": "None", "clientConfig": client,
        });
        let metadata =
            json!({ "name": "peer-pods-config", "uid": "1", "managedFields": [{ "manager": manager }] });
        Call::get(PATH).answer(Answer::json(200, &json!({ "metadata": metadata, "webhooks": [webhook] })))
    }

    /// A write of the new authorities and of nothing else.
    fn write() -> Call {
        let webhook = json!({ "name": WEBHOOK, "clientConfig": { "caBundle": "bmV3" } });
        Call::patch(PATH).body(json!({ "metadata": { "uid": "1" }, "webhooks": [webhook] }))
    }

    /// Makes the registration trust the Secret's new authorities, so many times.
    async fn trust(times: usize, calls: Vec<Call>) {
        let server = ApiServer::expecting(calls);
        let (resources, _changes) = WebhookResources::watch(&server.client(), "ns", Arc::default());
        resources.watched().learn("config", b"new");
        let config = PeerPodConfig::new("config", PeerPodConfigSpec::default());
        for _ in 0..times {
            resources.trust(&config).await.unwrap();
        }
    }

    #[tokio::test]
    async fn an_own_registration_gets_new_authorities_and_nothing_else() {
        trust(1, vec![read(FIELD_MANAGER, "ns", Some("b2xk")), write()]).await;
        trust(1, vec![read(FIELD_MANAGER, "ns", None), write()]).await;
        trust(1, vec![read(FIELD_MANAGER, "ns", Some("bmV3"))]).await;
        trust(1, vec![read("another", "ns", Some("b2xk"))]).await;
        trust(1, vec![read(FIELD_MANAGER, "another", Some("b2xk"))]).await;
        let none = Answer::not_found("mutatingwebhookconfigurations", "peer-pods-config");
        trust(1, vec![Call::get(PATH).answer(none)]).await;
    }

    #[tokio::test]
    async fn authorities_that_another_client_keeps_changing_are_left() {
        let mut calls: Vec<_> = (0..4).flat_map(|_| [read(FIELD_MANAGER, "ns", None), write()]).collect();
        calls.push(read(FIELD_MANAGER, "ns", None));
        trust(5, calls).await;
    }
}
