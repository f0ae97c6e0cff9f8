//! What EC2 answers *(no client)*.

use jiff::Timestamp;
use serde::Deserialize;

use super::api::Items;
use crate::provider::PowerState;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Instances {
    reservation_set: Items<Reservation>,
    pub(super) next_token: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Reservation {
    #[serde(default)]
    instances_set: Items<Instance>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Instance {
    #[serde(rename = "instanceId")]
    pub(super) id: String,
    #[serde(rename = "instanceState")]
    pub(super) state: State,
    #[serde(default)]
    network_interface_set: Items<Attached>,
    #[serde(default)]
    pub(super) tag_set: Items<Tag>,
}

#[derive(Deserialize)]
struct Attached {
    attachment: Option<Attachment>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Attachment {
    device_index: u32,
    attach_time: Option<Timestamp>,
}

#[derive(Deserialize)]
pub(super) struct State {
    pub(super) name: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Tags {
    pub(super) tag_set: Items<Tag>,
    pub(super) next_token: Option<String>,
}

/// A tag of an instance, or a tag with its resource.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Tag {
    pub(super) key: String,
    #[serde(default)]
    pub(super) value: String,
    #[serde(default)]
    pub(super) resource_id: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Addresses {
    pub(super) addresses_set: Items<Address>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Address {
    pub(super) allocation_id: String,
    #[serde(rename = "associationId", default)]
    association: String,
    #[serde(rename = "instanceId", default)]
    instance: String,
    #[serde(rename = "networkInterfaceId", default)]
    interface: String,
}

impl Address {
    /// Whether something other than this instance and these interfaces uses it.
    pub(super) fn is_used_beside(&self, instance: &str, interfaces: &[String]) -> bool {
        let is_own = self.instance == instance || interfaces.contains(&self.interface);
        !self.association.is_empty() && !is_own
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Interfaces {
    pub(super) network_interface_set: Items<Interface>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Interface {
    pub(super) network_interface_id: String,
}

impl Instances {
    pub(super) fn all(self) -> impl Iterator<Item = Instance> {
        self.reservation_set.item.into_iter().flat_map(|reservation| reservation.instances_set.item)
    }
}

impl Instance {
    /// When it was made. Its launch time is that of its last start, but its first interface was attached when it was made.
    pub(super) fn created(&self) -> Option<Timestamp> {
        let attachments = self.network_interface_set.item.iter().filter_map(|it| it.attachment.as_ref());
        attachments.filter(|it| it.device_index == 0).find_map(|it| it.attach_time)
    }

    /// Whether it runs. One that is stopping is off in a moment, and stays off.
    pub(super) fn power(&self) -> PowerState {
        match self.state.name.as_str() {
            "pending" | "running" => PowerState::Running,
            "stopping" | "stopped" => PowerState::Stopped,
            "shutting-down" => PowerState::Leaving,
            _ => PowerState::Unknown,
        }
    }

    pub(super) fn name(&self) -> String {
        self.tag("Name").unwrap_or_default().to_owned()
    }

    /// The value of the tag with this key.
    pub(super) fn tag(&self, key: &str) -> Option<&str> {
        self.tag_set.item.iter().find(|tag| tag.key == key).map(|tag| &*tag.value)
    }
}
