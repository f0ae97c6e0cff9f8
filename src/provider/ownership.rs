//! The proof that a VM is one Pod's pod VM.
//!
//! The author of a PeerPod can write any identifier into it, so an identifier proves nothing. The operator deletes a VM only if it
//! has the name that cloud-api-adaptor makes from the name of the owning Pod, and if it is neither another cluster's nor much older
//! than its record.
//!
//! | check | who calls it |
//! |---|---|
//! | `ensure_this_cluster` of `cluster_proof.rs` | `peerpod/observe.rs` and `sweep/search.rs`, for each VM that has a cluster's tag. A VM of another cluster counts as not answered for, so it supersedes nothing and is never absent. |
//! | [`verify`] | `peerpod/decide.rs`: before a deletion, and before a sibling's VM replaces another one. `sweep/confirm.rs`: for a VM that seems lost. |
//! | [`ensure_not_older`] | `peerpod/decide.rs`: before a deletion. A VM that the cloud is deleting already is waited for, however old it is. |
//! | [`verify_untracked`] | `sweep/search.rs`: before a deletion |

use jiff::{SignedDuration, Timestamp};
use operator_kit::Message;

use super::{Bears, ClusterProof, Listed, Resource, Stage, Vm, VmRef};

/// The first characters of the sandbox's id end the name.
const SANDBOX_CHARACTERS: usize = 8;

/// The longest time from the creation of a VM until its first record. cloud-api-adaptor records a VM as soon as the cloud has made
/// it, which takes some clouds many minutes; and their clocks may be off.
const RECORDED_BY: SignedDuration = SignedDuration::from_hours(1);

/// The start of every pod VM's name.
pub const POD_VM: &str = "podvm-";

/// A VM that is proven to be the pod VM of the Pod in question, or to be this cluster's and no Pod's. Only [`verify`] and
/// [`verify_untracked`] make one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnVm(Vm);

impl OwnVm {
    /// The VM.
    pub fn vm(&self) -> &Vm {
        &self.0
    }
}

/// Why a VM is not the Pod's. Its `Display` does not show the VM's name, which is made from the name of another Pod, perhaps in
/// another namespace.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotOwn {
    /// It bears another name.
    #[error(
        "the VM {id} has another name than {expected:?}, the name of a VM of this Pod: it ends with 8 hexadecimal digits that are no date"
    )]
    Name {
        /// Its identifier.
        id: String,
        /// The name it bears.
        name: String,
        /// The name it should bear, the sandbox's part as `????????`.
        expected: String,
    },
    /// It bears the name but not the provider's sign of a pod VM.
    #[error("the VM {id} has no sign that cloud-api-adaptor made it")]
    Unmarked {
        /// Its identifier.
        id: String,
        /// The name it bears.
        name: String,
    },
    /// It was made long before the PeerPod, which cloud-api-adaptor makes together with the VM.
    #[error(
        "the VM {id} is much older than this PeerPod, which may come from a backup or from another cluster, \
         unless the cloud's clock is behind"
    )]
    Older {
        /// Its identifier.
        id: String,
        /// The name it bears.
        name: String,
    },
}

impl NotOwn {
    /// The text in both versions.
    pub fn message(&self) -> Message {
        let (Self::Name { name, .. } | Self::Unmarked { name, .. } | Self::Older { name, .. }) = self;
        Message::new(self.to_string(), format!("{self}; its name is {name:?}"))
    }
}

/// Proves that cloud-api-adaptor made `vm` for the Pod named `pod`, or says why not. `name_limit` is the
/// [cloud's](super::Cloud::name_limit).
pub fn verify(vm: Vm, pod: &str, name_limit: usize) -> Result<OwnVm, NotOwn> {
    if vm.stage == Stage::Remains(Bears::Id) {
        // Their name has the identifier that the PeerPod records, in a form that only cloud-api-adaptor uses, and no VM needs
        // them.
        return Ok(OwnVm(vm));
    }
    let expected = stem_of(pod, name_limit);
    let sandbox = vm.name.strip_prefix(&expected);
    if !sandbox.is_some_and(is_sandbox) {
        let expected = format!("{expected}{}", "?".repeat(SANDBOX_CHARACTERS));
        return Err(NotOwn::Name { id: vm.id.to_string(), name: vm.name, expected });
    }
    if !vm.marked {
        return Err(NotOwn::Unmarked { id: vm.id.to_string(), name: vm.name });
    }
    Ok(OwnVm(vm))
}

/// Fails for a VM that was there long before it was recorded. Then another record may be the right one: the PeerPod was restored from
/// a backup, or copied from the cluster that has the VM.
pub fn ensure_not_older(vm: &Vm, recorded: Timestamp) -> Result<(), NotOwn> {
    if vm.created.is_some_and(|created| recorded.duration_since(created) > RECORDED_BY) {
        return Err(NotOwn::Older { id: vm.id.to_string(), name: vm.name.clone() });
    }
    Ok(())
}

/// Proves that `vm`, as the cloud describes it, is what a list showed, and by `proof` that it is this cluster's. The caller must
/// know that no Pod and no PeerPod needs it.
pub fn verify_untracked(vm: Vm, listed: &Listed, _proof: &ClusterProof) -> Result<OwnVm, NotOwn> {
    let bears_id = vm.stage == Stage::Remains(Bears::Id)
        && listed.vm.as_ref().is_some_and(|it| *it == VmRef::Id(vm.id.to_string()));
    if bears_id {
        return Ok(OwnVm(vm));
    }
    let is_it = listed.kind == Resource::Vm && vm.id.as_str() == listed.id && vm.name == listed.name;
    if !is_it || !is_pod_vm(&vm.name) {
        return Err(NotOwn::Name { id: vm.id.to_string(), name: vm.name, expected: listed.name.clone() });
    }
    if !vm.marked {
        return Err(NotOwn::Unmarked { id: vm.id.to_string(), name: vm.name });
    }
    Ok(OwnVm(vm))
}

/// A pod VM's name without the sandbox's part; `None` for a name that cloud-api-adaptor does not give. All VMs of one Pod have
/// the same stem.
pub fn stem(name: &str) -> Option<&str> {
    let stem = name.get(..name.len().checked_sub(SANDBOX_CHARACTERS)?)?;
    let is_whole = stem.len() > POD_VM.len() + 1 && stem.starts_with(POD_VM) && stem.ends_with('-');
    (is_whole && may_be_sandbox(&name[stem.len()..])).then_some(stem)
}

/// Whether cloud-api-adaptor gives such names: they end with hexadecimal digits. [`stem`] accepts more names, as it only protects
/// VMs.
pub fn is_pod_vm(name: &str) -> bool {
    stem(name).is_some_and(|stem| is_sandbox(&name[stem.len()..]))
}

/// Whether this is the start of a sandbox's id, as container runtimes make it. Eight letters alone may be a word that a VM of
/// other use has in its name, `podvm-builder-instance`, and eight digits a date, `podvm-ubuntu-20260815`. One sandbox of 100,000 has
/// an id that begins like a date: a person deletes its VM.
fn is_sandbox(text: &str) -> bool {
    let is_hexadecimal = text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    text.len() == SANDBOX_CHARACTERS && is_hexadecimal && !is_date(text)
}

/// Whether these are a year of this century, a month and a day.
fn is_date(text: &str) -> bool {
    let number = |from: usize, to: usize| text.get(from..to).and_then(|part| part.parse::<u16>().ok());
    matches!((number(0, 4), number(4, 6), number(6, 8)), (Some(2000..=2099), Some(1..=12), Some(1..=31)))
}

fn may_be_sandbox(text: &str) -> bool {
    text.len() == SANDBOX_CHARACTERS
        && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
}

/// The name that cloud-api-adaptor gives to the VM of a Pod in the sandbox of this id.
pub(super) fn name(pod: &str, sandbox: &str, name_limit: usize) -> String {
    let sandbox = sandbox.chars().take(SANDBOX_CHARACTERS);
    stem_of(pod, name_limit).chars().chain(sandbox).collect()
}

/// The [`stem`] of the VMs of the Pod with this name: in lower case, with other characters than letters, digits and hyphens
/// replaced, cut to the limit.
pub fn stem_of(pod: &str, name_limit: usize) -> String {
    let room = name_limit.saturating_sub(POD_VM.len() + 1 + SANDBOX_CHARACTERS);
    let pod = pod.chars().flat_map(char::to_lowercase).map(|c| match c {
        'a'..='z' | '0'..='9' | '-' => c,
        _ => '-',
    });
    let mut name = String::from(POD_VM);
    name.extend(pod.take(room));
    name.push('-');
    name
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::provider::{CLOUDS, ClusterClaims, InstanceId, NAME_LIMIT};
    use proptest::prelude::*;

    fn vm(name: &str) -> Vm {
        Vm::named(InstanceId::scoped("", "i-1"), name)
    }

    fn verified(vm: Vm, pod: &str) -> Result<OwnVm, NotOwn> {
        verify(vm, pod, NAME_LIMIT)
    }

    #[test]
    fn the_name_made_from_the_pod_proves_the_vm() {
        assert!(verified(vm("podvm-web-0-1a2b3c4d"), "web-0").is_ok());
        assert!(verified(vm("podvm-a-b-1a2b3c4d"), "a.b").is_ok(), "dots become hyphens");
        let long = "x".repeat(253);
        assert!(verified(vm(&format!("podvm-{}-1a2b3c4d", "x".repeat(48))), &long).is_ok(), "names are cut");
    }

    #[test]
    fn a_name_is_cut_to_its_clouds_limit() {
        let long = "x".repeat(253);
        for cloud in CLOUDS {
            let limit = cloud.name_limit;
            for length in [47, 63] {
                let name = format!("podvm-{}-1a2b3c4d", "x".repeat(length - 15));
                assert_eq!(verify(vm(&name), &long, limit).is_ok(), length == limit, "{cloud} {name}");
            }
        }
    }

    #[test]
    fn a_stem_is_that_of_every_vm_of_the_pod_and_of_nothing_else() {
        for pod in ["web-0", "a.b", &"x".repeat(253)] {
            assert_eq!(stem(&name(pod, "1a2b3c4d5e", NAME_LIMIT)), Some(&*stem_of(pod, NAME_LIMIT)), "{pod}");
        }
        for other in
            ["podvm-base.qcow2", "podvm--1a2b3c4d", "podvm-a-1A2b3c4d", "a-1a2b3c4d", "", "podvm-é1a2b3c4"]
        {
            assert_eq!(stem(other), None, "{other}");
        }
        for vm in
            ["podvm-web-0-1a2b3c4d", "podvm-web-0-20261315", "podvm-web-0-19991231", "podvm-web-0-20261232"]
        {
            assert!(is_pod_vm(vm), "{vm}");
        }
        for other in [
            "podvm-ubuntu-template",
            "podvm-builder-instance",
            "podvm-base-ubuntu22",
            "podvm-ubuntu-20260815",
            "podvm-ubuntu-20991231",
        ] {
            assert!(!is_pod_vm(other), "{other}");
        }
    }

    #[test]
    fn an_untracked_vm_is_the_one_that_was_listed() {
        let claims = ClusterClaims::exclusive();
        let name = "podvm-web-0-1a2b3c4d";
        let listed = Listed::new(Resource::Vm, "i-1", name);
        let proof = claims.proof(&listed).unwrap();
        let verified = |vm, listed: &Listed| verify_untracked(vm, listed, &proof).is_ok();
        assert!(verified(vm(name), &listed));
        assert!(!verified(vm("podvm-web-0-99999999"), &listed), "the identifier is another VM's now");
        assert!(!verified(Vm { marked: false, ..vm(name) }, &listed));
        assert!(!verified(vm("database"), &Listed::new(Resource::Vm, "i-1", "database")));
        assert!(!verified(vm(name), &Listed::new(Resource::Disk, "i-1", name)));
        let remains = Vm { stage: Stage::Remains(Bears::Id), ..vm("eip-i-1") };
        let address = Listed::new(Resource::Address, "eipalloc-1", "eip-i-1");
        assert!(!verified(remains.clone(), &address));
        assert!(verified(remains, &Listed { vm: Some(VmRef::Id("i-1".to_owned())), ..address }));
    }

    #[test]
    fn other_names_prove_nothing() {
        for name in [
            "podvm-base.qcow2",
            "podvm-web-00-1a2b3c4d",
            "podvm-web-1a2b3c4d",
            "web-0",
            "",
            "podvm-web-0-1a2b3c4d5",
            "podvm-web-0-1A2B3C4D",
            "podvm-web-0-1a2b-c4d",
        ] {
            assert!(matches!(verified(vm(name), "web-0"), Err(NotOwn::Name { .. })), "{name}");
        }
        for (name, pod) in [
            ("podvm-builder-instance", "builder"),
            ("podvm-ubuntu-template", "ubuntu"),
            ("podvm-ubuntu-20260815", "ubuntu"),
        ] {
            assert!(verified(vm(name), pod).is_err(), "{name} ends with no sandbox's id");
        }
        assert!(
            verified(vm("podvm-web-1a2b3c4d-1a2b3c4d"), "web").is_err(),
            "the VM of the Pod web-1a2b3c4d"
        );
    }

    #[test]
    fn a_name_without_the_providers_sign_proves_nothing() {
        let unmarked = Vm { marked: false, ..vm("podvm-web-0-1a2b3c4d") };
        assert!(matches!(verified(unmarked, "web-0"), Err(NotOwn::Unmarked { .. })));
    }

    #[test]
    fn remains_are_proven_by_the_identifier_only_where_no_vm_is_left() {
        for (stage, proven) in [
            (Stage::Remains(Bears::Id), true),
            (Stage::Remains(Bears::Name), false),
            (Stage::Present, false),
            (Stage::Leaving, false),
        ] {
            assert_eq!(verified(Vm { stage, ..vm("eip-i-1") }, "web-0").is_ok(), proven, "{stage:?}");
        }
    }

    proptest! {
        #[test]
        fn every_pods_own_vm_is_proven_and_fits_the_limit(pod in "[a-z0-9]([a-z0-9.-]{0,250}[a-z0-9])?", sandbox in "[0-9a-f]{8}") {
            prop_assume!(!is_date(&sandbox));
            let name = format!("{}{sandbox}", stem_of(&pod, NAME_LIMIT));
            prop_assert!(name.len() <= NAME_LIMIT);
            prop_assert!(verified(vm(&name), &pod).is_ok());
        }

        #[test]
        fn no_vm_is_proven_for_two_short_pod_names(a in "[a-z0-9]([a-z0-9-]{0,40}[a-z0-9])?", b in "[a-z0-9]([a-z0-9-]{0,40}[a-z0-9])?", sandbox in "[0-9a-f]{8}") {
            prop_assume!(a != b);
            let name = format!("{}{sandbox}", stem_of(&a, NAME_LIMIT));
            prop_assert!(verified(vm(&name), &b).is_err());
        }

        #[test]
        fn any_name_is_answered_without_panic(name in "\\PC*", pod in "\\PC*") {
            let _ = verified(vm(&name), &pod);
        }
    }
}
