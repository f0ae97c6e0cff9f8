//! Guards PeerPods. A PeerPod names a VM that the operator deletes with the cloud's credentials, so only users with a right
//! for it may write its important fields. For every user the API server's own authorizer decides: there is no list of names.
//!
//! | what is written | the required verb on `peerpods` |
//! |---|---|
//! | a new PeerPod, another spec, another owner | `record` |
//! | no owner | `record`, or the right to delete Pods in the namespace (it lets a user orphan a PeerPod anyway, by the garbage collector) |
//! | no finalizer of cloud-api-adaptor's, or a further finalizer | `release` |
//! | the annotation that abandons the VM | `abandon` |
//!
//! The ordinary rights decide about everything else. That includes a deletion, because the operator judges it by the Pod.

use k8s_openapi::api::{
    admissionregistration::v1::{
        NamedRuleWithOperations, ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
        ValidatingAdmissionPolicySpec, Validation, Variable,
    },
    rbac::v1::ClusterRole,
};
use kube::Resource as _;
use operator_kit::{
    Permission,
    permission::{bound_role, rules},
};
use serde_json::{Error, to_value};

use super::{
    Component, Manifest, Options,
    policies::{binding_to, matching},
};
use crate::{
    api::v1alpha1::{
        ABANDON_VERB, FINALIZER, PeerPod, RECORD_VERB, RELEASE_ABANDON, RELEASE_ANNOTATION, RELEASE_VERB,
    },
    peerpodconfig::resources::SERVICE_ACCOUNT,
};

/// The name of the policy and of its binding.
pub const NAME: &str = "peerpod-guard";

/// The file that holds it all.
const FILE: &str = "guard";

/// The role of cloud-api-adaptor, beside its other rights: `record` and `release`.
pub const RECORDER: &str = "peerpod-recorder";

/// The role with all rights on PeerPods, for administrators of PeerPods. It has no binding; a cluster administrator has its
/// rights.
pub const ADMINISTRATOR: &str = "peerpod-administrator";

/// What [`RECORDER`] allows.
const RECORDER_PERMISSIONS: &[Permission] =
    &[Permission::new("confidentialcontainers.org", &["peerpods"], &[RECORD_VERB, RELEASE_VERB])];

/// What [`ADMINISTRATOR`] allows.
const ADMINISTRATOR_PERMISSIONS: &[Permission] = &[Permission::new(
    "confidentialcontainers.org",
    &["peerpods"],
    &["get", "list", "watch", "create", "patch", "update", "delete", RECORD_VERB, RELEASE_VERB, ABANDON_VERB],
)];

/// What happens to a write without the right to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Action {
    /// The write succeeds. Its author gets a warning, and the audit log has an entry. So an administrator learns of a
    /// cloud-api-adaptor under an unexpected account, and all of its VMs are recorded.
    #[default]
    Warn,
    /// It is refused.
    Deny,
}

/// The roles with the verbs that the guard requires. They exist without the guard, too, so that turning it on refuses no user.
pub(super) fn roles(options: &Options) -> Result<Vec<Manifest>, Error> {
    let recorder = Component::Operator.cluster_scoped(RECORDER);
    let [recorder, binding] =
        bound_role(recorder, &[RECORDER_PERMISSIONS], &[SERVICE_ACCOUNT], &options.namespace)?;
    let administrator = ClusterRole {
        metadata: Component::Operator.cluster_scoped(ADMINISTRATOR),
        rules: Some(rules(&[ADMINISTRATOR_PERMISSIONS])),
        ..ClusterRole::default()
    };
    let objects = [recorder, binding, to_value(administrator)?];
    Ok(objects.map(|object| Manifest { file: FILE, object }).into())
}

/// The guard itself.
pub(super) fn objects() -> Result<Vec<Manifest>, Error> {
    Ok(vec![
        Manifest { file: FILE, object: to_value(policy())? },
        Manifest { file: FILE, object: to_value(binding(Action::default()))? },
    ])
}

/// What is asked of whom.
pub fn policy() -> ValidatingAdmissionPolicy {
    ValidatingAdmissionPolicy {
        metadata: Component::Operator.cluster_scoped(NAME),
        spec: Some(ValidatingAdmissionPolicySpec {
            // The binding says what to do about a failure.
            failure_policy: Some("Fail".to_owned()),
            match_constraints: Some(matching(vec![NamedRuleWithOperations {
                api_groups: Some(vec![PeerPod::group(&()).into_owned()]),
                api_versions: Some(vec!["*".to_owned()]),
                operations: Some(vec!["CREATE".to_owned(), "UPDATE".to_owned()]),
                resources: Some(vec![PeerPod::plural(&()).into_owned()]),
                scope: Some("*".to_owned()),
                ..NamedRuleWithOperations::default()
            }])),
            variables: Some(variables()),
            validations: Some(validations()),
            ..ValidatingAdmissionPolicySpec::default()
        }),
        status: None,
    }
}

/// Where the policy is in force (everywhere), and how.
pub fn binding(action: Action) -> ValidatingAdmissionPolicyBinding {
    let actions = match action {
        Action::Warn => ["Warn", "Audit"],
        Action::Deny => ["Deny", "Audit"],
    };
    binding_to(Component::Operator.cluster_scoped(NAME), NAME, &actions, None)
}

/// What the validations compare. An owner is its identity and whether it is the controller; `blockOwnerDeletion` belongs to the
/// garbage collector. `former` are the values before the write, and empty if the object is new.
fn variables() -> Vec<Variable> {
    let identities = |object: &str| {
        format!(
            "{object}.metadata.?ownerReferences.orValue([]).map(owner, [owner.apiVersion, owner.kind, owner.name, \
             owner.uid, owner.?controller.orValue(false)])"
        )
    };
    let holds = |finalizers: &str| format!("'{FINALIZER}' in {finalizers}.metadata.?finalizers.orValue([])");
    let abandons = |object: &str| {
        format!("{object}.metadata.?annotations[?'{RELEASE_ANNOTATION}'].orValue('') == '{RELEASE_ABANDON}'")
    };
    [
        ("isNew", "request.operation == 'CREATE'".to_owned()),
        ("owners", identities("object")),
        ("formerOwners", format!("variables.isNew ? [] : {}", identities("oldObject"))),
        // The remaining owners, in their order: the order decides which one counts.
        ("keptOwners", "variables.formerOwners.filter(it, it in variables.owners)".to_owned()),
        (
            "records",
            "variables.isNew || object.?spec != oldObject.?spec || variables.owners != variables.keptOwners"
                .to_owned(),
        ),
        ("disowns", "size(variables.keptOwners) < size(variables.formerOwners)".to_owned()),
        ("releases", format!("!variables.isNew && {} && !({})", holds("oldObject"), holds("object"))),
        (
            "holds",
            "!variables.isNew && object.metadata.?finalizers.orValue([]).exists(it, !(it in \
             oldObject.metadata.?finalizers.orValue([])))"
                .to_owned(),
        ),
        ("abandons", format!("{} && (variables.isNew || !({}))", abandons("object"), abandons("oldObject"))),
    ]
    .map(|(name, expression)| Variable { name: name.to_owned(), expression })
    .into()
}

fn validations() -> Vec<Validation> {
    let may = |verb: &str| format!("authorizer.requestResource.check('{verb}').allowed()");
    let who_else = format!(
        "The ClusterRole {RECORDER} grants it: if this is cloud-api-adaptor with another account, bind \
         that role to the account."
    );
    let people = format!("The ClusterRole {ADMINISTRATOR} grants it.");
    let delete_pods =
        "authorizer.group('').resource('pods').namespace(request.namespace).check('delete').allowed()";
    [
        (
            format!("!variables.records || {}", may(RECORD_VERB)),
            format!(
                "may not create a PeerPod or change its spec or owner, because the operator deletes the VM \
                 that it names: this needs the right to {RECORD_VERB} peerpods. {who_else}"
            ),
        ),
        (
            format!("!variables.disowns || {} || {delete_pods}", may(RECORD_VERB)),
            format!(
                "may not remove the owner of a PeerPod, because its VM would never be deleted: this needs \
                 the right to {RECORD_VERB} peerpods or to delete pods. {who_else}"
            ),
        ),
        (
            format!("!variables.releases || {}", may(RELEASE_VERB)),
            format!(
                "may not remove the finalizer {FINALIZER} of a PeerPod, because its VM would never be \
                 deleted: this needs the right to {RELEASE_VERB} peerpods. {who_else}"
            ),
        ),
        (
            format!("!variables.holds || {}", may(RELEASE_VERB)),
            format!(
                "may not add a finalizer to a PeerPod, because it keeps the PeerPod, and many of them its VM: this \
                 needs the right to {RELEASE_VERB} peerpods. {who_else}"
            ),
        ),
        (
            format!("!variables.abandons || {}", may(ABANDON_VERB)),
            format!(
                "may not abandon the VM of a PeerPod ({RELEASE_ANNOTATION}={RELEASE_ABANDON}), because the \
                 VM would keep running and cost money: this needs the right to {ABANDON_VERB} peerpods. \
                 {people}"
            ),
        ),
    ]
    .map(|(expression, message)| Validation {
        expression,
        message_expression: Some(format!("request.userInfo.username + ' {message}'")),
        reason: Some("Forbidden".to_owned()),
        ..Validation::default()
    })
    .into()
}
