//! What the record says to a command that a person starts *(client required)*.

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, Client, api::ListParams};
use operator_kit::api_call::bounded;

use super::{
    messages,
    records::{Identity, Records, key},
};
use crate::{
    names::PLACES,
    provider::{Error, ErrorClass, Provider},
    settings::Snapshot,
};

/// Whether another identity answers at the place that these settings name than the record in this namespace has, or has since answered
/// there. A place that is not recorded has not moved.
///
/// # Errors
///
/// If the record cannot be read, or the cloud does not say who answers.
pub(in crate::provider) async fn has_moved(
    client: Client,
    namespace: &str,
    settings: &Snapshot,
    provider: &dyn Provider,
) -> Result<bool, Error> {
    let name = format!("{namespace}/{PLACES}");
    let api: Api<ConfigMap> = Api::namespaced(client, namespace);
    // The operator has the right to list this object, and none to get it.
    let this = ListParams::default().fields(&format!("metadata.name={PLACES}"));
    let listed = bounded(api.list(&this)).await;
    let listed = listed.map_err(|error| messages::failed("read", &name, error.code(), &error))?;
    let data = listed.items.into_iter().find_map(|object| object.data).unwrap_or_default();
    let records = Records::read(&data).map_err(|unreadable| messages::unreadable(&unreadable, &name))?;
    let endpoint = settings.endpoint().map_err(|message| Error::new(ErrorClass::Invalid, message))?;
    let Some(record) = records.of(&key(settings.cloud(), &endpoint.address)) else { return Ok(false) };
    let Some(recorded) = record.identity.as_ref().filter(|_| record.moved_at.is_none()) else {
        return Ok(record.moved_at.is_some());
    };
    Ok(Identity::new(provider.identity().await?) != *recorded)
}
