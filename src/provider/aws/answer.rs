//! What EC2 and the token service answer, and what it means *(no client)*.

use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Deserializer, de::DeserializeOwned};

use crate::provider::{
    ErrorClass, PowerState,
    http::{Failure, Reply},
};

/// The classes that EC2 documents for codes. For all other codes the status decides. No code means absence by itself.
const CLASSES: [(ErrorClass, &str); 4] = [
    (
        ErrorClass::Throttled { retry_after: Duration::ZERO },
        "BandwidthLimitExceeded EC2ThrottledException PriorRequestNotComplete RequestLimitExceeded RequestThrottled \
         RequestThrottledException SlowDown ThrottledException Throttling ThrottlingException TooManyRequestsException",
    ),
    (
        ErrorClass::Unauthorized,
        "AccessDenied AuthFailure Blocked ExpiredToken ExpiredTokenException IDPRejectedClaim InvalidClientTokenId \
         InvalidIdentityToken MissingAuthenticationToken OptInRequired PendingVerification RequestExpired \
         SignatureDoesNotMatch UnauthorizedOperation",
    ),
    (
        ErrorClass::Refused,
        "DependencyViolation IncorrectInstanceState IncorrectState InvalidIPAddress.InUse InvalidNetworkInterface.InUse \
         InvalidParameterValue OperationNotPermitted",
    ),
    (
        ErrorClass::Transient,
        "IDPCommunicationError InternalError InternalFailure RequestTimeout RequestTimeoutException ServiceUnavailable \
         Unavailable",
    ),
];

/// A page of any list. It has one set, whose name distinguishes it from any other XML, which would be an empty list.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", bound = "T: DeserializeOwned")]
pub(super) struct Page<T> {
    #[serde(
        alias = "addressesSet",
        alias = "networkInterfaceSet",
        alias = "reservationSet",
        alias = "tagSet"
    )]
    #[serde(deserialize_with = "items")]
    pub(super) set: Vec<T>,
    #[serde(default)]
    pub(super) next_token: String,
}

/// Instances that were made together.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Reservation {
    #[serde(default, deserialize_with = "items")]
    pub(super) instances_set: Vec<Instance>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Instance {
    #[serde(rename = "instanceId")]
    pub(super) id: String,
    #[serde(rename = "instanceState")]
    pub(super) state: State,
    #[serde(default, deserialize_with = "items")]
    network_interface_set: Vec<Attached>,
    #[serde(default, deserialize_with = "items")]
    pub(super) tag_set: Vec<Tag>,
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

/// An elastic address.
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

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Interface {
    pub(super) network_interface_id: String,
}

/// The form of both services, in one.
#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Problems {
    errors: Option<Box<Problems>>,
    error: Problem,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Problem {
    code: String,
    message: String,
}

/// Reads a list, whose parts have the name `item`.
fn items<'de, T: Deserialize<'de>, D: Deserializer<'de>>(list: D) -> Result<Vec<T>, D::Error> {
    #[derive(Deserialize)]
    struct Items<T> {
        #[serde(default = "Vec::new")]
        item: Vec<T>,
    }
    Ok(Items::deserialize(list)?.item)
}

impl Address {
    /// Whether something other than this instance and these interfaces uses it.
    pub(super) fn is_used_beside(&self, instance: &str, interfaces: &[String]) -> bool {
        let is_own = self.instance == instance || interfaces.contains(&self.interface);
        !self.association.is_empty() && !is_own
    }
}

impl Instance {
    /// When it was made. Its launch time is that of its last start, but its first interface was attached when it was made.
    pub(super) fn created(&self) -> Option<Timestamp> {
        let attachments = self.network_interface_set.iter().filter_map(|it| it.attachment.as_ref());
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
        self.tag_set.iter().find(|tag| tag.key == key).map(|tag| &*tag.value)
    }
}

/// What an answer that is no success says.
pub(super) fn failure(reply: &Reply) -> Failure {
    let problems: Problems = quick_xml::de::from_reader(&*reply.body).unwrap_or_default();
    let Problem { code, message } = problems.errors.map_or(problems.error, |errors| errors.error);
    let error = reply.error(&code, &message, ErrorClass::of_code(&code, &CLASSES));
    Failure { code, error }
}
