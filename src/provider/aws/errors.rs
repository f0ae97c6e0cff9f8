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

/// What an answer that is no success says.
pub(super) fn failure(reply: &Reply) -> Failure {
    let problems: Problems = quick_xml::de::from_reader(&*reply.body).unwrap_or_default();
    let Problem { code, message } = problems.errors.map_or(problems.error, |errors| errors.error);
    let error = reply.error(&code, &message, ErrorClass::of_code(&code, &CLASSES));
    Failure { code, error }
}
