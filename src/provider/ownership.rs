//! The proof that a VM is one Pod's pod VM.
//!
//! The author of a PeerPod can write any identifier into it, so an identifier proves nothing. The operator deletes a VM only if it
//! has the name that cloud-api-adaptor makes from the name of the owning Pod.

use operator_kit::Message;

use super::{Bears, Stage, Vm};

/// The first characters of the sandbox's id end the name.
const SANDBOX_CHARACTERS: usize = 8;

/// The start of every pod VM's name.
pub const POD_VM: &str = "podvm-";

/// A VM that has been proven to be the pod VM of the Pod in question. Only [`verify`] makes one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnVm(Vm);

impl OwnVm {
    /// The VM.
    pub fn vm(&self) -> &Vm {
        &self.0
    }
}

/// Why a VM is not the Pod's. Displayed, it does not show the VM's name: that is made from another Pod's name, whose
/// namespace may be another one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotOwn {
    /// It bears another name.
    #[error("the VM {id} has another name than {expected:?}, the name of a VM of this Pod")]
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
}

impl NotOwn {
    /// The text in both versions.
    pub fn message(&self) -> Message {
        let (Self::Name { name, .. } | Self::Unmarked { name, .. }) = self;
        Message::new(self.to_string(), format!("{self}; its name is {name:?}"))
    }
}

/// Proves that cloud-api-adaptor made `vm` for the Pod named `pod`, or says why not. `name_limit` is the
/// [cloud's](super::Cloud::name_limit).
pub fn verify(vm: Vm, pod: &str, name_limit: usize) -> Result<OwnVm, NotOwn> {
    if vm.stage == Stage::Remains(Bears::Id) {
        // They bear the identifier that the PeerPod records, in a name that cloud-api-adaptor alone gives, and no VM needs them.
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

fn is_sandbox(text: &str) -> bool {
    text.len() == SANDBOX_CHARACTERS
        && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
}

/// The name that cloud-api-adaptor gives to the VM of a Pod in the sandbox of this id.
pub(super) fn name(pod: &str, sandbox: &str, name_limit: usize) -> String {
    let sandbox = sandbox.chars().take(SANDBOX_CHARACTERS);
    stem_of(pod, name_limit).chars().chain(sandbox).collect()
}

/// The name up to the sandbox's part: lower-cased, what is no letter, digit or hyphen replaced, cut to the limit.
fn stem_of(pod: &str, name_limit: usize) -> String {
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
    use crate::provider::{CLOUDS, InstanceId, NAME_LIMIT};
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
