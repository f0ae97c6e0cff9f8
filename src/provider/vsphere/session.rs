//! A session with vCenter, and calls in it *(client required)*.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use hyper::{
    Request,
    body::Bytes,
    header::{CONTENT_TYPE, COOKIE, HeaderValue, SET_COOKIE},
};
use jiff::Timestamp;
use secrecy::{ExposeSecret as _, SecretString};
use tokio::time::Instant;

use super::{
    reference::{Ref, element},
    settings::{Place, Settings},
};
use crate::provider::{
    Error, ErrorClass,
    account::Account,
    cloud::Opening,
    http::{Call, Client, Failure, Fresh, Options, Pace, Reply, Tokens, xml::Node},
};

/// The cookie of a session.
const SESSION: &str = "vmware_soap_session";

/// How long a session is kept. vCenter ends it when it is not used for a while, and says so in its next answer, so a short time
/// would only cost logins.
const LASTS: Duration = Duration::from_secs(24 * 3600);

/// vCenter locks a user out after five wrong passwords in three minutes, and cloud-api-adaptor may use the same user.
const AFTER_REFUSAL: Duration = Duration::from_secs(90);

/// The action of the first request, before the version of vCenter's API is known. vCenter answers in the form of the version that is
/// named here; without one, in that of 2.5, which has no `instanceUuid`. That exists since 4.0, and vCenter 6 to 8 answer 5.5.
const FIRST_ACTION: &str = "urn:vim25/5.5";

/// The fault by which vCenter says that a session has ended.
const ENDED: &str = "NotAuthenticated";

/// The fault for a property that vCenter does not know. The newest one that is read is `config.createDate`, which exists since 6.7.
const UNKNOWN_PROPERTY: &str = "InvalidProperty";

/// A vCenter, as one user.
pub(super) struct VCenter {
    login: Arc<Login>,
    /// Which vCenter it must be.
    account: Account,
}

/// How one user is logged in. Providers for several folders share it: a session is no folder's, and a wrong password must not be tried
/// for each of them.
struct Login {
    client: Client,
    url: String,
    user: SecretString,
    password: SecretString,
    is_pinned: bool,
    session: Tokens<Arc<Session>>,
    /// When the user was last refused, and why.
    refused: Mutex<Option<(Instant, Error)>>,
}

/// A session, and what it works with.
#[derive(Debug)]
pub(super) struct Session {
    cookie: HeaderValue,
    /// The key by which vCenter knows the session.
    pub(super) key: String,
    /// The identity of the vCenter.
    pub(super) vcenter: String,
    /// Its name and version, for people.
    pub(super) product: String,
    /// The header `SOAPAction`, which has the version of the API.
    action: String,
    pub(super) property_collector: Ref,
    pub(super) search_index: Ref,
    pub(super) authorization_manager: Ref,
}

/// What a failure means for a call that continues a list which another call began. A list ends with its session, so it must begin
/// again.
pub(super) fn in_the_middle(Failure { code, error }: Failure) -> Error {
    if code != ENDED {
        return error;
    }
    let error = error.advising("the session ended in the middle of a list, which begins again later");
    Error { class: ErrorClass::Transient, ..error }
}

impl VCenter {
    pub(super) fn new(place: &Place, settings: &Settings, opening: &Opening<'_>) -> Result<Self, Error> {
        let [user, password, thumbprint] = [&settings.user, &settings.password, &settings.thumbprint]
            .map(|it| it.as_ref().map_or("", |it| it.expose_secret()));
        let parts = ["vsphere", &*place.url, user, password, thumbprint];
        let login = opening.shared.get(&parts, || Login::new(&place.url, settings))?;
        Ok(Self { login, account: Account::of(opening) })
    }

    /// Calls a method, and gives the element with its answer. `arguments` begin with the object whose method it is. A session that
    /// ended is replaced once.
    pub(super) async fn call(
        &self,
        doing: &'static str,
        pace: Pace,
        method: &str,
        arguments: impl Fn(&Session) -> String,
    ) -> Result<Node, Failure> {
        self.begin(doing, pace, method, arguments).await.map(|(_, answer)| answer)
    }

    /// The same, and gives the session that was used, for calls that only this session can make.
    pub(super) async fn begin(
        &self,
        doing: &'static str,
        pace: Pace,
        method: &str,
        arguments: impl Fn(&Session) -> String,
    ) -> Result<(Arc<Session>, Node), Failure> {
        let session = self.session().await?;
        let (session, answer) = match self.call_in(&session, doing, pace, method, &arguments(&session)).await
        {
            Err(ended) if ended.code == ENDED => {
                let session = self.session().await?;
                let answer = self.call_in(&session, doing, pace, method, &arguments(&session)).await;
                (session, answer)
            }
            answer => (session, answer),
        };
        Ok((session, answer?))
    }

    /// Calls a method in this session. One that ended is not used again.
    pub(super) async fn call_in(
        &self,
        session: &Arc<Session>,
        doing: &'static str,
        pace: Pace,
        method: &str,
        arguments: &str,
    ) -> Result<Node, Failure> {
        let request = self.login.request(&session.action, Some(&session.cookie), method, arguments)?;
        let answer = answer(&self.login.client.send(Call::new(doing, pace, request)).await?, method);
        if answer.as_ref().is_err_and(|failure| failure.code == ENDED) {
            self.login.session.forget(|it| Arc::ptr_eq(it, session)).await;
        }
        answer
    }

    /// A session with the vCenter in which the VMs are.
    pub(super) async fn session(&self) -> Result<Arc<Session>, Error> {
        let session = self.login.session.get(async || self.login.log_in().await).await?;
        self.account.ensure("vCenter", &session.vcenter)?;
        Ok(session)
    }
}

impl Login {
    fn new(url: &str, settings: &Settings) -> Result<Self, Error> {
        let unusable = |()| Error::new(ErrorClass::Invalid, "GOVC_THUMBPRINT is no thumbprint");
        let pinned = settings.fingerprint().map_err(unusable)?;
        Ok(Self {
            is_pinned: pinned.is_some(),
            client: Client::new(Options { pinned, ..Options::default() })?,
            url: url.to_owned(),
            user: settings.user.clone().unwrap_or_default(),
            password: settings.password.clone().unwrap_or_default(),
            session: Tokens::default(),
            refused: Mutex::default(),
        })
    }

    async fn log_in(&self) -> Result<Fresh<Arc<Session>>, Error> {
        let refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some((_, error)) = refused.filter(|(at, _)| at.elapsed() < AFTER_REFUSAL) {
            return Err(error);
        }
        let logged_in = self.try_log_in().await;
        if let Err(error) = &logged_in
            && error.class == ErrorClass::Unauthorized
        {
            let refused = Some((Instant::now(), error.clone()));
            *self.refused.lock().unwrap_or_else(PoisonError::into_inner) = refused;
        }
        Ok(Fresh { value: Arc::new(logged_in?), expires: Timestamp::now() + LASTS })
    }

    async fn try_log_in(&self) -> Result<Session, Error> {
        let doing = "asking vCenter what it offers";
        let this = Ref::service_instance().element("_this");
        let request = self.request(FIRST_ACTION, None, "RetrieveServiceContent", &this)?;
        let reply =
            self.client.send(Call::new(doing, Pace::Read, request)).await.map_err(|error| {
                match error.class {
                    ErrorClass::Invalid if !self.is_pinned => error.advising("or set GOVC_THUMBPRINT"),
                    _ => error,
                }
            })?;
        let content = answer(&reply, "RetrieveServiceContent").map_err(Error::from)?;
        let content = content.child("returnval").ok_or_else(|| reply.unreadable("content", "it is empty"))?;
        let object = |name: &str| {
            let found = content.child(name).and_then(Ref::of);
            found.ok_or_else(|| reply.unreadable("content", &format!("it lacks {name}")))
        };
        let about = |name| content.child("about").map_or("", |about| about.text_of(name));
        let vcenter = about("instanceUuid").to_ascii_lowercase();
        if about("apiType") != "VirtualCenter" || vcenter.is_empty() {
            let message = "GOVC_URL is not the address of a vCenter; a single host of ESXi is none";
            return Err(Error::new(ErrorClass::Invalid, message));
        }
        let action = format!("urn:vim25/{}", about("apiVersion"));
        let doing = "logging in to vCenter";
        let arguments = [
            object("sessionManager")?.element("_this"),
            element("userName", self.user.expose_secret()),
            element("password", self.password.expose_secret()),
        ];
        let request = self.request(&action, None, "Login", &arguments.concat())?;
        let secrets = vec![self.user.clone(), self.password.clone()];
        let login = self.client.send(Call { secrets, ..Call::new(doing, Pace::Read, request) }).await?;
        let user = answer(&login, "Login").map_err(|failure| match &*failure.code {
            "" if login.status.is_success() => login.no_credential(),
            _ => failure.error,
        })?;
        let key = user.child("returnval").map_or("", |user| user.text_of("key"));
        let cookie = cookie(&login).filter(|_| !key.is_empty()).ok_or_else(|| login.no_credential())?;
        Ok(Session {
            cookie,
            key: key.to_owned(),
            property_collector: object("propertyCollector")?,
            search_index: object("searchIndex")?,
            authorization_manager: object("authorizationManager")?,
            product: about("fullName").to_owned(),
            vcenter,
            action,
        })
    }

    fn request(
        &self,
        action: &str,
        cookie: Option<&HeaderValue>,
        method: &str,
        arguments: &str,
    ) -> Result<Request<Bytes>, Error> {
        let envelope = "http://schemas.xmlsoap.org/soap/envelope/";
        let body = format!(
            r#"<?xml version="1.0" encoding="UTF-8"?><Envelope xmlns="{envelope}"><Body><{method} xmlns="urn:vim25" xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance">{arguments}</{method}></Body></Envelope>"#
        );
        let mut request = Request::post(&self.url).header(CONTENT_TYPE, "text/xml; charset=utf-8");
        request = request.header("SOAPAction", action);
        if let Some(cookie) = cookie {
            request = request.header(COOKIE, cookie);
        }
        request
            .body(body.into())
            .map_err(|_| Error::new(ErrorClass::Invalid, "GOVC_URL cannot be the address of a request"))
    }
}

/// The cookie of the session that a login began.
fn cookie(login: &Reply) -> Option<HeaderValue> {
    let all = login.headers.get_all(SET_COOKIE).iter().filter_map(|it| it.to_str().ok());
    let pairs = all.filter_map(|cookie| cookie.split(';').next());
    let pair =
        pairs.map(str::trim).find(|pair| pair.split_once('=').is_some_and(|(name, _)| name == SESSION))?;
    let mut value = HeaderValue::try_from(pair).ok()?;
    value.set_sensitive(true);
    Some(value)
}

/// The element with the answer to this method, or the error that the reply means.
fn answer(reply: &Reply, method: &str) -> Result<Node, Failure> {
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
