//! Identifiers of Azure Resource Manager *(no client)*.

use uuid::Uuid;

use crate::provider::{IdProblem, ParsedId};

/// Where VMs are in a resource group.
const VMS: &str = "/providers/microsoft.compute/virtualmachines/";

const MALFORMED: IdProblem = IdProblem::Malformed {
    expected: "the identifier of an Azure VM: /subscriptions/…/resourceGroups/…/providers/Microsoft.Compute/virtualMachines/NAME",
    hint: None,
};

/// Reads the identifier of a VM. Azure compares identifiers without case, so the canonical form is in lower case. The scope is the
/// subscription and the resource group.
pub(super) fn parse(raw: &str) -> Result<ParsedId, IdProblem> {
    let canonical = raw.to_lowercase();
    let scope = scope_of_vm(&canonical).ok_or(MALFORMED)?.len();
    Ok(ParsedId { canonical, scope, key: 0 })
}

fn scope_of_vm(canonical: &str) -> Option<String> {
    let (place, name) = canonical.split_once(VMS)?;
    let (subscription, group) = place.strip_prefix("/subscriptions/")?.split_once("/resourcegroups/")?;
    scope(subscription, group).filter(|scope| scope == place && is_name(name))
}

/// The canonical identifier of a resource group, if these can be the subscription's and the group's names.
pub(super) fn scope(subscription: &str, group: &str) -> Option<String> {
    let subscription = canonical(subscription).filter(|_| is_name(group))?;
    Some(format!("/subscriptions/{subscription}/resourcegroups/{}", group.to_lowercase()))
}

/// The canonical name of a subscription, if it can be one's.
pub(super) fn canonical(subscription: &str) -> Option<String> {
    Uuid::try_parse(subscription).ok().map(|subscription| subscription.hyphenated().to_string())
}

/// The subscription in a canonical identifier.
pub(super) fn subscription(id: &str) -> Option<&str> {
    id.split('/').nth(2)
}

/// The name in the identifier of a resource.
pub(super) fn name(id: &str) -> &str {
    id.rsplit('/').next().unwrap_or_default()
}

/// Whether Azure may give this name to a group or a VM. It is one segment of a path, and no other path.
fn is_name(name: &str) -> bool {
    let fits = name.chars().all(|it| it.is_alphanumeric() || "-_.()".contains(it));
    fits && (1..=90).contains(&name.chars().count()) && !name.ends_with('.')
}

/// An identifier as the path of a URL.
pub(super) fn path(id: &str) -> String {
    let segments =
        id.split('/').map(|segment| form_urlencoded::byte_serialize(segment.as_bytes()).collect::<String>());
    segments.collect::<Vec<_>>().join("/")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::provider::InstanceId;

    const SCOPE: &str = "/subscriptions/0dd2f0c5-6a3d-44a7-9b5e-2f7a6c2f9a11/resourcegroups/pods";

    fn of(raw: &str) -> Result<InstanceId, IdProblem> {
        InstanceId::parse("azure", raw)
    }

    #[test]
    fn spellings_of_one_vm_are_one_id_with_its_place_as_scope() {
        let canonical = format!("{SCOPE}/providers/microsoft.compute/virtualmachines/podvm-a-1a2b3c4d");
        for spelling in [
            canonical.clone(),
            canonical.to_uppercase(),
            "/subscriptions/0DD2f0c5-6a3d-44a7-9b5e-2f7a6c2f9a11/resourceGroups/Pods/providers/Microsoft.Compute/virtualMachines/podvm-a-1a2b3c4d"
                .to_owned(),
        ] {
            let id = of(&spelling).unwrap();
            assert_eq!((id.as_str(), id.scope(), name(id.as_str())), (&*canonical, Some(SCOPE), "podvm-a-1a2b3c4d"));
        }
    }

    #[test]
    fn a_group_of_any_name_that_azure_gives_is_part_of_a_url() {
        let raw = "/subscriptions/0dd2f0c5-6a3d-44a7-9b5e-2f7a6c2f9a11/resourceGroups/Büro_(1).x/providers/Microsoft.Compute/virtualMachines/a";
        let id = of(raw).unwrap();
        let path = path(id.as_str());
        assert!(path.contains("/resourcegroups/b%C3%BCro_%281%29.x/providers/microsoft.compute/"), "{path}");
    }

    #[test]
    fn identifiers_that_name_no_vm_are_refused() {
        let subscription = "/subscriptions/0dd2f0c5-6a3d-44a7-9b5e-2f7a6c2f9a11";
        for raw in [
            "podvm-a-1a2b3c4d".to_owned(),
            "0dd2f0c5-6a3d-44a7-9b5e-2f7a6c2f9a11".to_owned(),
            SCOPE.to_owned(),
            format!("{SCOPE}{VMS}"),
            format!("{SCOPE}{VMS}a/b"),
            format!("{SCOPE}{VMS}.."),
            format!("{SCOPE}{VMS}a?x=y"),
            format!("{SCOPE}{VMS}a%2fb"),
            format!("{SCOPE}{VMS}a b"),
            format!("x{SCOPE}{VMS}a"),
            format!("{subscription}/resourcegroups/..{VMS}a"),
            format!("{subscription}/resourcegroups/a/b{VMS}a"),
            format!("{subscription}/resourcegroups/{VMS}a"),
            format!("/subscriptions/mine/resourcegroups/pods{VMS}a"),
            format!("/subscriptions/0dd2f0c56a3d44a79b5e2f7a6c2f9a11/resourcegroups/pods{VMS}a"),
            format!("{SCOPE}/providers/microsoft.compute/disks/a"),
            format!("{SCOPE}{VMS}{}", "a".repeat(91)),
        ] {
            assert!(matches!(of(&raw), Err(IdProblem::Malformed { .. })), "{raw}");
        }
    }
}
