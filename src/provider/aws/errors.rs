//! The errors of EC2 and of the token service, and their classes *(no client)*.

use std::time::Duration;

use serde::Deserialize;

use crate::provider::{
    ErrorClass,
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

/// The form of both services, in one.
#[derive(Default, Deserialize)]
struct Problems {
    #[serde(rename = "Errors")]
    errors: Option<Box<Problems>>,
    #[serde(rename = "Error")]
    error: Option<Problem>,
    #[serde(rename = "RequestID", alias = "RequestId")]
    request: Option<String>,
}

#[derive(Default, Deserialize)]
struct Problem {
    #[serde(rename = "Code", default)]
    code: String,
    #[serde(rename = "Message", default)]
    message: String,
}

/// What an answer that is no success says.
pub(super) fn failure(reply: &Reply) -> Failure {
    let mut problems: Problems = quick_xml::de::from_str(text(reply)).unwrap_or_default();
    let request = problems.request.take();
    let inner = problems.errors.take().map_or(problems, |errors| *errors);
    let Problem { code, message } = inner.error.unwrap_or_default();
    let message = request.map_or_else(|| message.clone(), |id| format!("{message} (request {id})"));
    let error = reply.error(&code, &message, ErrorClass::of_code(&code, &CLASSES));
    Failure { code, error }
}

/// The body; empty if it is no text.
pub(super) fn text(reply: &Reply) -> &str {
    std::str::from_utf8(&reply.body).unwrap_or_default()
}
