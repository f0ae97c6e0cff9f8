//! Takes over the fields that others set in an object of the operator *(client required)*.
//!
//! The API server merges what the operator applies with what others set. Where the two exclude each other, such as two handlers of one
//! probe, it refuses every further apply. If the operator owns the fields of the others, an apply without them removes them.

use std::time::Instant;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{FieldsV1, ManagedFieldsEntry};
use kube::{
    ResourceExt as _,
    api::{DynamicObject, Patch, PatchParams},
};
use operator_kit::api_call::{self, ApiError};
use serde_json::{Value, json};
use tracing::{info, warn};

use super::{apply::Objects, drift::Key, wanted::Wanted};
use crate::api::v1alpha1::FIELD_MANAGER;

/// These stay with those who set them: controllers keep their own annotations there, and nothing in it excludes anything else.
const METADATA: &str = "f:metadata";

impl Objects {
    /// Writes an object without the fields that others set, after the API server refused it as invalid. Gives the fields back if
    /// that write fails. Fails with `error`, the first refusal, if others set none.
    pub(super) async fn write_over(
        &self,
        wanted: &Wanted,
        there: &DynamicObject,
        key: &Key,
        error: ApiError,
    ) -> Result<DynamicObject, ApiError> {
        if !self.take_over(wanted, there).await? {
            return Err(error);
        }
        let written = self.write(wanted).await;
        if written.is_ok() {
            self.drifts.took_over(key.clone());
        } else {
            self.drifts.took_over_in_vain(key, Instant::now());
            self.give_back(wanted, there).await;
        }
        written
    }

    /// Makes the fields that others set the operator's own, so that the next write removes them. Returns whether there were any.
    async fn take_over(&self, wanted: &Wanted, there: &DynamicObject) -> Result<bool, ApiError> {
        let Some(fields) = taken_over(there.managed_fields()) else { return Ok(false) };
        info!(kind = wanted.resource.kind, name = wanted.name, "taking over the fields that others set");
        let patch = Patch::Merge(json!({
            "metadata": { "managedFields": fields, "resourceVersion": there.metadata.resource_version },
        }));
        let params = PatchParams::apply(FIELD_MANAGER);
        api_call::bounded(wanted.api(&self.client).patch(&wanted.name, &params, &patch)).await?;
        Ok(true)
    }

    /// Gives the fields of others back: they were not what made the object invalid, and the next write must not remove them.
    async fn give_back(&self, wanted: &Wanted, there: &DynamicObject) {
        let fields = Patch::Merge(json!({ "metadata": { "managedFields": there.managed_fields() } }));
        let params = PatchParams::apply(FIELD_MANAGER);
        if let Err(error) =
            api_call::bounded(wanted.api(&self.client).patch(&wanted.name, &params, &fields)).await
        {
            warn!(%error, kind = wanted.resource.kind, name = wanted.name, "giving fields back failed");
        }
    }
}

/// The same owners, but with all that others own outside of the metadata as the operator's; `None` if they own nothing there.
fn taken_over(entries: &[ManagedFieldsEntry]) -> Option<Vec<ManagedFieldsEntry>> {
    let mut entries = entries.to_vec();
    let own = entries.iter().position(|entry| {
        entry.manager.as_deref() == Some(FIELD_MANAGER) && entry.operation.as_deref() == Some("Apply")
    })?;
    let mut own = entries.swap_remove(own);
    let mut fields = own.fields_v1.take()?.0;
    let mut any = false;
    let others = entries.iter_mut().filter(|it| {
        let is_ours = it.manager.as_deref() == Some(FIELD_MANAGER);
        !is_ours && it.subresource.is_none() && it.api_version == own.api_version
    });
    for FieldsV1(theirs) in others.filter_map(|entry| entry.fields_v1.as_mut()) {
        let Value::Object(theirs) = theirs else { continue };
        let metadata = theirs.remove(METADATA);
        any |= !theirs.is_empty();
        unite(&mut fields, Value::Object(std::mem::take(theirs)));
        theirs.extend(metadata.map(|metadata| (METADATA.to_owned(), metadata)));
    }
    own.fields_v1 = Some(FieldsV1(fields));
    entries.push(own);
    entries.retain(|entry| {
        entry.fields_v1.as_ref().is_some_and(|fields| fields.0 != Value::Object(<_>::default()))
    });
    any.then_some(entries)
}

/// Adds a set of fields to another. A set is a tree whose leaves are empty objects.
fn unite(fields: &mut Value, further: Value) {
    if let (Value::Object(fields), Value::Object(further)) = (fields, further) {
        for (name, below) in further {
            unite(fields.entry(name).or_insert_with(|| Value::Object(<_>::default())), below);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(manager: &str, operation: &str, subresource: Option<&str>, fields: Value) -> ManagedFieldsEntry {
        ManagedFieldsEntry {
            api_version: Some("apps/v1".to_owned()),
            manager: Some(manager.to_owned()),
            operation: Some(operation.to_owned()),
            subresource: subresource.map(str::to_owned),
            fields_v1: Some(FieldsV1(fields)),
            ..ManagedFieldsEntry::default()
        }
    }

    #[test]
    fn fields_of_other_managers_are_taken_over_except_metadata_and_status() {
        let own = json!({ "f:metadata": { "f:labels": {} }, "f:spec": { "f:a": { "f:b": {} } } });
        let status = entry("kube-controller-manager", "Update", Some("status"), json!({ "f:status": {} }));
        let counted = json!({ "f:metadata": { "f:annotations": {} } });
        let both =
            json!({ "f:metadata": { "f:annotations": {} }, "f:spec": { "f:a": { ".": {}, "f:c": {} } } });
        // What this operator patched.
        let patched = entry(FIELD_MANAGER, "Update", None, json!({ "f:spec": { "f:e": {} } }));
        let entries = [
            entry(FIELD_MANAGER, "Apply", None, own.clone()),
            status.clone(),
            entry("controller", "Update", None, both),
            entry("kubectl-patch", "Update", None, json!({ "f:spec": { "f:d": {} } })),
            patched.clone(),
        ];
        let united = json!({
            "f:metadata": { "f:labels": {} },
            "f:spec": { "f:a": { ".": {}, "f:b": {}, "f:c": {} }, "f:d": {} },
        });
        let taken = taken_over(&entries).unwrap();
        assert_eq!(taken.len(), 4);
        assert!(taken.contains(&entry(FIELD_MANAGER, "Apply", None, united)));
        assert!(taken.contains(&entry("controller", "Update", None, counted)), "{taken:?}");
        assert!(taken.contains(&status) && taken.contains(&patched));
        assert_eq!(taken_over(&taken), None, "once");
        assert_eq!(taken_over(&[status]), None, "it is not the operator's");
    }
}
