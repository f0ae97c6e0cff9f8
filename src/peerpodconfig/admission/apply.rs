//! Writes the objects of an admission *(client required)*: first the wanted ones. Then it removes those that are no longer
//! wanted.

use std::slice;

use futures::{
    future::{join_all, try_join_all},
    try_join,
};
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::Deployment;
use kube::{ResourceExt, api::DeleteParams};
use operator_kit::api_call::ApiError;

use super::{
    super::{
        apply::{Left, Objects},
        findings::ReconcileError,
        resources::{CLASS_ANNOTATION, Names, Owner},
        wanted::{Found, Kind, Wanted},
    },
    desired::{self, Desired},
    findings::{available, certificate_problem},
    observe::WebhookInputs,
    webhook_resources::WebhookResources,
};
use crate::api::v1alpha1::PeerPodConfig;

pub(super) struct Applier {
    pub(super) objects: Objects,
    pub(super) webhook_resources: WebhookResources,
}

impl Applier {
    /// Writes the policy, then its binding.
    pub(super) async fn policy(&self, owner: &Owner<'_>, desired: &Desired) -> Result<Found, ReconcileError> {
        let wanted = desired::policy(owner)?;
        Ok(self.objects.apply_all(&owner.config.name_any(), &desired.kinds, &wanted).await?)
    }

    /// Writes the webhook: its server, then its registration. If a part of the server cannot be written, the registration waits: it
    /// would come into force, or change its runtime class, and the server that runs would refuse those Pods. The authorities of an
    /// existing registration do not wait: see [`WebhookResources::trust`].
    pub(super) async fn webhook(
        &self,
        owner: &Owner<'_>,
        desired: &Desired,
        inputs: &WebhookInputs,
    ) -> Result<Found, ReconcileError> {
        let acquired = Box::pin(self.webhook_resources.set_owner(owner.config, true)).await;
        let (name, names) = (owner.config.name_any(), Names::of(owner.config));
        let servers = desired::webhook_server(owner, inputs)?;
        let (serving, registrations): (Vec<_>, Vec<_>) =
            desired.kinds.iter().cloned().partition(|kind| servers.iter().any(|server| server.is_a(kind)));
        let served = self.server(&name, &serving, &servers).await;
        acquired?;
        let mut found = served?;
        let (watched, authorities) = (self.webhook_resources.watched(), inputs.authorities.as_ref());
        let answers = available(found.get::<Deployment>(&names.webhook).as_ref()) > 0
            && authorities.is_some()
            && certificate_problem(watched, owner, authorities, Timestamp::now()).is_none();
        // A registered webhook that does not answer refuses Pods. While there is another admission of their class, its own or that of a
        // younger configuration, the registration waits. Without any admission, Pods would not become peer pods, so the registration does not wait.
        let due = answers || {
            let of_any = [registrations.as_slice(), &desired.former].concat();
            let of_younger = desired.younger.iter().map(|younger| self.objects.all_staying(younger, &of_any));
            let (registered, mut others, of_younger) = try_join!(
                self.objects.all_staying(&name, &registrations),
                self.objects.all_staying(&name, &desired.former),
                try_join_all(of_younger),
            )?;
            others.extend(of_younger.into_iter().flatten());
            let class = &owner.config.spec.admission.runtime_class_name;
            let has_another =
                others.iter().any(|other| other.annotations().get(CLASS_ANNOTATION) == Some(class));
            !registered.is_empty() || !has_another
        };
        if due {
            let registration = desired::webhook_registration(owner, inputs.authorities.clone())?;
            found.add(self.objects.apply_all(&name, &registrations, &[registration]).await?);
        }
        Ok(found)
    }

    /// Writes the server of a webhook. If one of its objects cannot be written, the others are all the same.
    async fn server(&self, config: &str, kinds: &[Kind], wanted: &[Wanted]) -> Result<Found, ApiError> {
        let of_kinds = kinds.iter().map(|kind| self.objects.apply_all(config, slice::from_ref(kind), wanted));
        let mut found = Found::default();
        for of_kind in join_all(of_kinds).await {
            found.add(of_kind?);
        }
        Ok(found)
    }

    /// Removes the objects of these kinds, the last kind first: the registration of a webhook before its server, without which it
    /// would refuse every peer pod. Returns what was left.
    pub(super) async fn remove(
        &self,
        config: &PeerPodConfig,
        kinds: &[Kind],
    ) -> Result<Option<Left>, ApiError> {
        let kinds: Vec<_> = kinds.iter().rev().cloned().collect();
        self.objects.clear(&config.name_any(), &kinds, &DeleteParams::background()).await
    }

    /// The configuration has no webhook.
    pub(super) async fn without_webhook(&self, config: &PeerPodConfig) -> Result<(), ReconcileError> {
        Ok(Box::pin(self.webhook_resources.set_owner(config, false)).await?)
    }
}
