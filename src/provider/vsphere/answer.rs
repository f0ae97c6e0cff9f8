//! What vCenter's answers mean *(no client)*.

use hyper::header::{HeaderValue, SET_COOKIE};

use crate::provider::{
    Error, ErrorClass,
    http::{Failure, Reply, xml::Node},
};

/// The cookie of a session.
const SESSION: &str = "vmware_soap_session";

/// The fault by which vCenter says that it does not know the session: it has ended, or is with another vCenter.
pub(super) const ENDED: &str = "NotAuthenticated";

/// The fault for a property that vCenter does not know. The newest one that is read is `config.createDate`, which exists since 6.7.
const UNKNOWN_PROPERTY: &str = "InvalidProperty";

/// What a failure means for a call that continues a list which another call began. A list ends with its session, so it must begin
/// again.
pub(super) fn in_the_middle(Failure { code, error }: Failure) -> Error {
    if code != ENDED {
        return error;
    }
    let error = error.advising("the session ended in the middle of a list, which begins again later");
    Error { class: ErrorClass::Transient, ..error }
}

/// The cookie of the session that a login began.
pub(super) fn cookie(login: &Reply) -> Option<HeaderValue> {
    let all = login.headers.get_all(SET_COOKIE).iter().filter_map(|it| it.to_str().ok());
    let pairs = all.filter_map(|cookie| cookie.split(';').next());
    let pair =
        pairs.map(str::trim).find(|pair| pair.split_once('=').is_some_and(|(name, _)| name == SESSION))?;
    let mut value = HeaderValue::try_from(pair).ok()?;
    value.set_sensitive(true);
    Some(value)
}

/// The element with the answer to this method, or the error that the reply means.
pub(super) fn answer(reply: &Reply, method: &str) -> Result<Node, Failure> {
    let body = reply.xml().and_then(|mut envelope| {
        let body = (envelope.name == "Envelope").then(|| envelope.children.pop()).flatten();
        let body = body.filter(|it| it.name == "Body").and_then(|mut body| body.children.pop());
        body.ok_or_else(|| reply.unreadable("XML", "it has no body of SOAP"))
    });
    match body {
        Ok(fault) if fault.name == "Fault" => Err(failure(reply, &fault)),
        _ if !reply.status.is_success() => Err(reply.error("", "", None).into()),
        Ok(answer) if answer.name == format!("{method}Response") => Ok(answer),
        Ok(answer) => Err(reply.unreadable("answer", &format!("it is a {:?}", answer.name)).into()),
        Err(problem) => Err(problem.into()),
    }
}

fn failure(reply: &Reply, fault: &Node) -> Failure {
    let detail = fault.child("detail").and_then(|detail| detail.children.first());
    let code = detail.map_or("", |detail| match &*detail.kind {
        "" => detail.name.trim_end_matches("Fault"),
        kind => kind,
    });
    let right = detail.map_or("", |detail| detail.text_of("privilegeId"));
    let message = format!("{} {right}", fault.text_of("faultstring"));
    let error = reply.error(code, &message, ErrorClass::of_code(code, &CLASSES));
    let error = if code == UNKNOWN_PROPERTY { error.advising("vCenter must be 6.7 or newer") } else { error };
    Failure { code: code.to_owned(), error }
}

/// The classes that vCenter documents for faults. For all other faults the status decides. No fault means absence.
const CLASSES: [(ErrorClass, &str); 3] = [
    (
        ErrorClass::Unauthorized,
        "InvalidLogin NoPermission NotAuthenticated PasswordExpired RestrictedByAdministrator",
    ),
    (ErrorClass::Refused, "ConcurrentAccess InvalidPowerState InvalidState MethodDisabled TaskInProgress"),
    (ErrorClass::Invalid, "InvalidArgument InvalidProperty InvalidRequest MethodNotFound NotSupported"),
];
