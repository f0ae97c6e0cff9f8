//! What EC2 and the token service answer, and what it means *(no client)*.

use hyper::StatusCode;
use secrecy::SecretString;

use crate::provider::{
    Error, ErrorClass, Listed, PowerState, Resource, Vm,
    http::{AccessKey, Failure, Fresh, Reply, SignedAnswer, xml::Node},
};

/// The classes that EC2 documents for codes. For all other codes the status decides. No code means absence by itself.
const CLASSES: [(ErrorClass, &str); 4] = [
    (
        ErrorClass::Throttled { retry_after: None },
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

/// How the message of an `InvalidIdentityToken` begins if the token service could not reach the identity provider.
const UNVERIFIED: &str = "Couldn't retrieve verification key";

/// The codes for a key that may be replaced by a new one.
const EXPIRED: [&str; 4] = ["ExpiredToken", "ExpiredTokenException", "RequestExpired", "AuthFailure"];

/// An answer to an action.
pub(super) struct Answer {
    reply: Reply,
    root: Node,
}

pub(super) struct Instance {
    pub(super) vm: Listed,
    pub(super) is_terminated: bool,
}

impl SignedAnswer for Answer {
    /// The answer to another question proves nothing, and is a failure.
    fn read(action: &str, reply: Reply) -> Result<Self, Failure> {
        let reply = reply.success_or(failure)?;
        let root = reply.xml()?;
        if root.name == format!("{action}Response") {
            return Ok(Self { reply, root });
        }
        Err(reply.unreadable("XML", &format!("it is no {action}Response")).into())
    }

    fn is_refusal(_: StatusCode, failure: &Failure) -> bool {
        EXPIRED.contains(&&*failure.code)
    }

    fn names_nothing(failure: &Failure) -> bool {
        [".NotFound", ".Malformed"].iter().any(|end| failure.code.ends_with(end))
    }

    fn account(&self) -> Result<String, Error> {
        let result = self.root.child("GetCallerIdentityResult");
        let account = result.and_then(|result| result.non_empty("Account"));
        account.ok_or_else(|| self.reply.unreadable("XML", "it names no account"))
    }

    fn next(&self) -> Option<(&'static str, String)> {
        Some(("NextToken", self.root.non_empty("nextToken")?))
    }
}

impl Answer {
    /// The items of the list of this name, as `read` reads them. An answer without that list is half an answer, and so is one with an
    /// item that lacks a part.
    pub(super) fn list<T>(&self, name: &str, read: impl Fn(&Node) -> Option<T>) -> Result<Vec<T>, Error> {
        let items = self.root.child(name).and_then(|list| list.all("item").map(read).collect());
        items.ok_or_else(|| self.reply.unreadable("XML", &format!("it has no whole {name}")))
    }
}

impl Instance {
    /// The instances that were made together.
    pub(super) fn of(reservation: &Node) -> Option<Vec<Self>> {
        reservation.child("instancesSet")?.all("item").map(Self::read).collect()
    }

    fn read(item: &Node) -> Option<Self> {
        // Its launch time is that of its last start, but its first interface was attached when it was made.
        let attachments = items(item, "networkInterfaceSet").filter_map(|it| it.child("attachment"));
        let mut first = attachments.filter(|it| it.text_of("deviceIndex") == "0");
        // White space is a part of a tag, and may distinguish a name from a pod VM's.
        let tag = |it: &Node| {
            Some((it.exact_of("key")?.to_owned(), it.exact_of("value").unwrap_or_default().to_owned()))
        };
        let tags: Vec<_> = items(item, "tagSet").map(tag).collect::<Option<_>>()?;
        let name =
            tags.iter().find(|(key, _)| key == "Name").map_or("", |(_, name)| name.as_str()).to_owned();
        let state = item.child("instanceState")?.non_empty("name")?;
        let vm = Listed {
            created: first.find_map(|it| it.text_of("attachTime").parse().ok()),
            state: match &*state {
                "pending" | "running" => PowerState::Running,
                // One that is stopping is off in a moment, and stays off.
                "stopping" | "stopped" => PowerState::Stopped,
                "shutting-down" => PowerState::Leaving,
                _ => PowerState::Unknown,
            },
            tags,
            ..Listed::new(Resource::Vm, item.non_empty("instanceId")?, name)
        };
        Some(Self { vm, is_terminated: state == "terminated" })
    }
}

/// The items of the list of this name in an element; none without the list.
fn items<'a>(element: &'a Node, list: &'a str) -> impl Iterator<Item = &'a Node> {
    element.child(list).into_iter().flat_map(|list| list.all("item"))
}

/// Whether something other than this VM and its interfaces uses an elastic address.
pub(super) fn is_used_beside(vm: &Vm, address: &Node) -> bool {
    let [association, instance, interface] =
        ["associationId", "instanceId", "networkInterfaceId"].map(|name| address.text_of(name));
    let is_own = instance == vm.id.as_str() || vm.belongings.iter().any(|own| own == interface);
    !association.is_empty() && !is_own
}

/// The key of the role that was assumed. An error quotes nothing of the answer.
pub(super) fn assumed(reply: Reply) -> Result<Fresh<AccessKey>, Error> {
    let reply = reply.success_or(failure)?;
    let key = reply.xml().ok().and_then(|root| {
        let key = root.child("AssumeRoleWithWebIdentityResult")?.child("Credentials")?;
        let part = |name| key.non_empty(name).map(SecretString::from);
        let (id, secret) = (part("AccessKeyId")?, part("SecretAccessKey")?);
        let value = AccessKey { id, secret, token: Some(part("SessionToken")?) };
        Some(Fresh { value, expires: key.text_of("Expiration").parse().ok()? })
    });
    key.ok_or_else(|| reply.no_credential())
}

/// What an answer that is no success says: of EC2 a list of errors, of the token service one.
fn failure(reply: &Reply) -> Failure {
    let root = reply.xml().unwrap_or_default();
    let problem = root.child("Errors").unwrap_or(&root).child("Error");
    let [code, message] = ["Code", "Message"].map(|name| problem.map_or("", |it| it.text_of(name)));
    let is_unverified = code == "InvalidIdentityToken" && message.starts_with(UNVERIFIED);
    let class = if is_unverified { Some(ErrorClass::Transient) } else { ErrorClass::of_code(code, &CLASSES) };
    let error = reply.error(code, message, class);
    Failure { code: code.to_owned(), error }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::provider::{InstanceId, aws::CLOUD};

    const ID: &str = "i-0123456789abcdef0";

    fn read(status: u16, body: &str) -> Result<Answer, Failure> {
        Answer::read("DescribeInstances", Reply::of(status.try_into().unwrap(), body))
    }

    /// The identifiers of the instances in this answer.
    fn instances(answer: &str) -> Result<Vec<String>, ErrorClass> {
        let answer = format!("<DescribeInstancesResponse>{answer}</DescribeInstancesResponse>");
        let made = read(200, &answer).and_then(|answer| Ok(answer.list("reservationSet", Instance::of)?));
        let made = made.map_err(|failure| failure.error.class)?;
        Ok(made.into_iter().flatten().map(|instance| instance.vm.id).collect())
    }

    fn item(inside: &str) -> String {
        format!(
            "<reservationSet><item><instancesSet><item>{inside}</item></instancesSet></item></reservationSet>"
        )
    }

    #[test]
    fn half_an_answer_is_an_error_and_no_empty_list() {
        let state = "<instanceState><name>running</name></instanceState>";
        let whole = item(&format!("<instanceId>{ID}</instanceId>{state}"));
        assert_eq!(instances(&whole), Ok(vec![ID.to_owned()]));
        assert_eq!(instances("<reservationSet/><nextToken/>"), Ok(Vec::new()));
        for half in [
            String::new(),
            "<tagSet/>".to_owned(),
            "<reservationSet><item/></reservationSet>".to_owned(),
            item(&format!("<instanceId>{ID}</instanceId>")),
            item(&format!("<instanceId>{ID}</instanceId><instanceState/>")),
            item(&format!("<instanceId/>{state}")),
            item(&format!("<instanceId>{ID}</instanceId>{state}<tagSet><item/></tagSet>")),
            "<reservationSet>".to_owned(),
        ] {
            assert_eq!(instances(&half), Err(ErrorClass::Transient), "{half}");
        }
    }

    #[test]
    fn only_the_answer_to_the_action_itself_is_read() {
        let next = |body: &str| read(200, body).ok().map(|answer| answer.next().map(|(_, token)| token));
        let prefixed = r#"<?xml version="1.0"?><e:DescribeInstancesResponse xmlns:e="x"><e:nextToken>a&amp;b</e:nextToken></e:DescribeInstancesResponse>"#;
        assert_eq!(next(prefixed), Some(Some("a&b".to_owned())));
        assert_eq!(next("<DescribeInstancesResponse/>"), Some(None));
        for other in [
            "<DescribeTagsResponse/>",
            "<a><DescribeInstancesResponse/></a>",
            "<!DOCTYPE html><DescribeInstancesResponse/>",
            "<DescribeInstancesResponse>",
            "<html>hello",
            "{}",
            "",
        ] {
            assert_eq!(next(other), None, "{other}");
        }
    }

    #[test]
    fn an_instance_is_as_old_as_its_first_interface_and_has_its_tags() {
        let interface = |index: u8, time: &str| {
            format!(
                "<item><attachment><deviceIndex>{index}</deviceIndex><attachTime>{time}</attachTime></attachment></item>"
            )
        };
        let item = format!(
            "<item><instanceId>{ID}</instanceId><instanceState><name>stopping</name></instanceState><launchTime>2027-01-01T00:00:00Z\
             </launchTime><networkInterfaceSet><item/>{}{}</networkInterfaceSet><tagSet><item><key>Name</key><value> a &lt; b \
             </value></item><item><key>empty</key></item></tagSet></item>",
            interface(1, "2026-11-24T06:00:00.000Z"),
            interface(0, "2026-11-23T06:00:00.000Z"),
        );
        let Instance { vm, is_terminated } = Instance::read(&Node::parse(&item).unwrap()).unwrap();
        assert_eq!(vm.created.unwrap().to_string(), "2026-11-23T06:00:00Z");
        let tag = |key: &str| vm.tags.iter().find(|(it, _)| it == key).map(|(_, value)| value.as_str());
        assert_eq!((&*vm.name, tag("empty"), tag("name")), (" a < b ", Some(""), None));
        assert_eq!((vm.state, is_terminated), (PowerState::Stopped, false));
    }

    #[test]
    fn a_failure_has_the_code_of_either_service() {
        for (body, code, class) in [
            (
                "<Response><Errors><Error><Code>InvalidInstanceID.NotFound</Code></Error></Errors></Response>",
                "InvalidInstanceID.NotFound",
                ErrorClass::Invalid,
            ),
            (
                "<ErrorResponse><Error><Code>AccessDenied</Code></Error></ErrorResponse>",
                "AccessDenied",
                ErrorClass::Unauthorized,
            ),
            (
                "<ErrorResponse><Error><Code>InvalidIdentityToken</Code><Message>No OpenIDConnect provider found in your account\
                 </Message></Error></ErrorResponse>",
                "InvalidIdentityToken",
                ErrorClass::Unauthorized,
            ),
            (
                "<ErrorResponse><Error><Code>InvalidIdentityToken</Code><Message>Couldn&apos;t retrieve verification key from your \
                 identity provider</Message></Error></ErrorResponse>",
                "InvalidIdentityToken",
                ErrorClass::Transient,
            ),
            ("<html>not found</html>", "", ErrorClass::Invalid),
            ("<html>", "", ErrorClass::Invalid),
        ] {
            let failure = read(400, body).err().unwrap();
            assert_eq!((&*failure.code, failure.error.class), (code, class), "{body}");
        }
    }

    #[test]
    fn credentials_are_read_as_a_whole_and_never_quoted() {
        let answer = |expiration: &str| {
            let body = format!(
                "<AssumeRoleWithWebIdentityResponse><AssumeRoleWithWebIdentityResult><Credentials>\
                 <AccessKeyId>id</AccessKeyId><SecretAccessKey>a-secret</SecretAccessKey><SessionToken>token</SessionToken>\
                 {expiration}</Credentials></AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>"
            );
            assumed(Reply::of(StatusCode::OK, &body))
        };
        let fresh = answer("<Expiration>2026-11-23T06:00:00Z</Expiration>").unwrap();
        assert_eq!(fresh.expires.to_string(), "2026-11-23T06:00:00Z");
        let error = answer("<Expiration>soon</Expiration>").unwrap_err();
        assert!(
            error.class == ErrorClass::Transient && !format!("{error:?}").contains("a-secret"),
            "{error:?}"
        );
    }

    #[test]
    fn an_address_is_used_beside_a_vm_if_something_else_has_it() {
        let id = InstanceId::of(&CLOUD, ID).unwrap();
        let vm = Vm { belongings: vec!["eni-1".to_owned()], ..Vm::named(id, "") };
        let is_used = |of: &str| {
            let address = format!("<item><allocationId>eipalloc-1</allocationId>{of}</item>");
            is_used_beside(&vm, &Node::parse(&address).unwrap())
        };
        let associated = |of: &str| is_used(&format!("<associationId>eipassoc-1</associationId>{of}"));
        assert!(!is_used("") && !associated(&format!("<instanceId>{ID}</instanceId>")));
        assert!(!associated("<networkInterfaceId>eni-1</networkInterfaceId>"));
        assert!(associated("<networkInterfaceId>eni-2</networkInterfaceId>") && associated(""));
    }
}
