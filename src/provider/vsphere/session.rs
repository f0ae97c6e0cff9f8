//! A session with vCenter, and calls in it *(client required)*.
//!
//! # Which vCenter answers
//!
//! The name in `GOVC_URL` may begin to lead to another vCenter. cloud-api-adaptor makes VMs there then, of which the former one knows
//! nothing. Both answer, and an open connection stays with its vCenter.
//!
//! - Only the vCenter that began a session knows its cookie. Any other one fails a search in it with `NotAuthenticated`, and then the
//!   session and its connections are replaced. So a search that finds nothing was made in the vCenter of the session.
//! - Which one that is, it says in the session itself (`identity.rs`). The requests of a login may lead to several ones.
//! - A session may go on with a vCenter to which the name no longer leads. So an answer that something is absent counts only if a search
//!   in the session succeeded by a connection that was opened after the question ([`VCenter::call_anew`]).

use std::{sync::Arc, time::Duration};

use hyper::{
    Request,
    body::Bytes,
    header::{CONTENT_TYPE, COOKIE, HeaderValue},
};
use jiff::Timestamp;
use parking_lot::Mutex;
use secrecy::{ExposeSecret as _, SecretString};
use tokio::time::Instant;

use super::{
    answer::{ENDED, answer, cookie},
    identity,
    reference::{Ref, element},
    settings::{Place, Settings},
};
use crate::provider::{
    Error, ErrorClass,
    account::Account,
    cloud::Opening,
    http::{Call, Client, Failure, Fresh, Options, Pace, Tokens, is_about_certificate, xml::Node},
};

/// How long a session is kept. vCenter ends it when it is not used for a while, and says so in its next answer. One with another vCenter
/// than the expected one is not used, and the address may lead back later.
const LASTS: Duration = Duration::from_secs(3600);

/// vCenter locks a user out after five wrong passwords in three minutes, and cloud-api-adaptor may use the same user.
const AFTER_REFUSAL: Duration = Duration::from_secs(90);

/// The action of the first request, before the version of vCenter's API is known. vCenter answers in the form of the version that is
/// named here; without one, in that of 2.5, which has no `instanceUuid`. That exists since 4.0, and vCenter 6 to 8 answer 5.5.
const FIRST_ACTION: &str = "urn:vim25/5.5";

/// A vCenter, as one user.
pub(super) struct VCenter {
    login: Arc<Login>,
    /// Which vCenter it must be.
    account: Account,
}

/// How one user is logged in. Providers for several folders share it: a session is no folder's, and a wrong password must not be tried
/// for each of them.
struct Login {
    /// It sends nothing itself: each login begins with one like it that has connections of its own.
    client: Client,
    url: String,
    user: SecretString,
    password: SecretString,
    is_pinned: bool,
    session: Tokens<Arc<Session>>,
    /// When the user was last refused, and why.
    refused: Mutex<Option<(Instant, Error)>>,
}

/// A method of vCenter's API, and what it is called for.
#[derive(Clone, Copy)]
pub(super) struct Method {
    /// For errors: "reading the VM".
    pub(super) doing: &'static str,
    /// Whether it changes anything.
    pub(super) pace: Pace,
    /// Its name.
    pub(super) name: &'static str,
}

impl Method {
    /// One that changes nothing.
    pub(super) const fn reading(doing: &'static str, name: &'static str) -> Self {
        Self { doing, pace: Pace::Read, name }
    }
}

/// A session, and what it works with.
#[derive(Debug)]
pub(super) struct Session {
    /// Its connections were opened since the login began. Older ones may lead to a former vCenter.
    client: Client,
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

impl VCenter {
    pub(super) fn new(place: &Place, settings: &Settings, opening: &Opening<'_>) -> Result<Self, Error> {
        let [user, password, thumbprint] = [&settings.user, &settings.password, &settings.thumbprint]
            .map(|it| it.as_ref().map_or("", |it| it.expose_secret()));
        let parts = ["vsphere", &*place.url, user, password, thumbprint];
        let login = opening.shared.get(&parts, || Login::new(&place.url, settings))?;
        Ok(Self { login, account: Account::of(opening) })
    }

    /// See [`Provider::most_at_once`](crate::provider::Provider::most_at_once).
    pub(super) fn most_at_once(&self) -> Option<usize> {
        self.login.client.most_at_once()
    }

    /// Calls a method, and gives the element with its answer. `arguments` begin with the object whose method it is. A session that
    /// ended is replaced once.
    pub(super) async fn call(
        &self,
        method: Method,
        arguments: impl Fn(&Session) -> String,
    ) -> Result<Node, Failure> {
        self.begin(method, arguments).await.map(|(_, answer)| answer)
    }

    /// The same, and gives the session that was used, for calls that only this session can make.
    pub(super) async fn begin(
        &self,
        method: Method,
        arguments: impl Fn(&Session) -> String,
    ) -> Result<(Arc<Session>, Node), Failure> {
        self.call_by(Client::clone, method, arguments).await
    }

    /// The same by a connection that is opened for this call. The answer to a search proves that the address led to the vCenter of this
    /// session after the call began. An answer with properties proves nothing: vCenter gives some to clients that are not logged in.
    pub(super) async fn call_anew(
        &self,
        search: Method,
        arguments: impl Fn(&Session) -> String,
    ) -> Result<(Arc<Session>, Node), Failure> {
        self.call_by(Client::reconnected, search, arguments).await
    }

    async fn call_by(
        &self,
        client: fn(&Client) -> Client,
        method: Method,
        arguments: impl Fn(&Session) -> String,
    ) -> Result<(Arc<Session>, Node), Failure> {
        let attempt = async || {
            let session = self.session().await?;
            let by = client(&session.client);
            let answer = self.send(&by, &session, method, &arguments(&session)).await?;
            Ok::<_, Failure>((session, answer))
        };
        match attempt().await {
            Err(ended) if ended.code == ENDED => attempt().await,
            answered => answered,
        }
    }

    /// Calls a method in this session. One that ended is not used again.
    pub(super) async fn call_in(
        &self,
        session: &Arc<Session>,
        method: Method,
        arguments: &str,
    ) -> Result<Node, Failure> {
        self.send(&session.client, session, method, arguments).await
    }

    async fn send(
        &self,
        client: &Client,
        session: &Arc<Session>,
        Method { doing, pace, name }: Method,
        arguments: &str,
    ) -> Result<Node, Failure> {
        let request = self.login.request(&session.action, Some(&session.cookie), name, arguments)?;
        let answer = answer(&client.send(Call::new(doing, pace, request)).await?, name);
        if answer.as_ref().is_err_and(|failure| failure.code == ENDED) {
            self.login.session.forget(|it| Arc::ptr_eq(it, session));
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
        let refused = self.refused.lock().clone();
        if let Some((_, error)) = refused.filter(|(at, _)| at.elapsed() < AFTER_REFUSAL) {
            return Err(error);
        }
        let logged_in = self.try_log_in().await;
        if let Err(error) = &logged_in
            && error.class == ErrorClass::Unauthorized
        {
            let refused = Some((Instant::now(), error.clone()));
            *self.refused.lock() = refused;
        }
        Ok(Fresh { value: Arc::new(logged_in?), expires: Timestamp::now() + LASTS })
    }

    async fn try_log_in(&self) -> Result<Session, Error> {
        let client = self.client.reconnected();
        let doing = "asking vCenter what it offers";
        let this = Ref::service_instance().element("_this");
        let request = self.request(FIRST_ACTION, None, "RetrieveServiceContent", &this)?;
        let reply =
            client.send(Call::new(doing, Pace::Read, request)).await.map_err(|error| match error.class {
                ErrorClass::Invalid if !self.is_pinned && is_about_certificate(&error) => {
                    error.advising("or set GOVC_THUMBPRINT")
                }
                _ => error,
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
        let session_manager = object("sessionManager")?;
        let arguments = [
            session_manager.element("_this"),
            element("userName", self.user.expose_secret()),
            element("password", self.password.expose_secret()),
        ];
        let request = self.request(&action, None, "Login", &arguments.concat())?;
        let secrets = vec![self.user.clone(), self.password.clone()];
        let login = client.send(Call { secrets, ..Call::new(doing, Pace::Read, request) }).await?;
        let user = answer(&login, "Login").map_err(|failure| match &*failure.code {
            "" if login.status.is_success() => login.no_credential(),
            _ => failure.error,
        })?;
        let key = user.child("returnval").map_or("", |user| user.text_of("key"));
        let cookie = cookie(&login).filter(|_| !key.is_empty()).ok_or_else(|| login.no_credential())?;
        let session = Session {
            client,
            cookie,
            key: key.to_owned(),
            property_collector: object("propertyCollector")?,
            search_index: object("searchIndex")?,
            authorization_manager: object("authorizationManager")?,
            product: about("fullName").to_owned(),
            vcenter,
            action,
        };
        self.ensure_identity(&session, &session_manager).await?;
        Ok(session)
    }

    /// Fails unless the vCenter that knows the session is the one that it was taken for.
    async fn ensure_identity(&self, session: &Session, session_manager: &Ref) -> Result<(), Error> {
        let arguments = session.property_collector.element("_this") + &identity::question(session_manager);
        let method = "RetrievePropertiesEx";
        let request = self.request(&session.action, Some(&session.cookie), method, &arguments)?;
        let doing = "asking vCenter for its identity";
        let reply = session.client.send(Call::new(doing, Pace::Read, request)).await?;
        let vcenter = match answer(&reply, method) {
            Ok(answer) => identity::vcenter(&answer, &session.key),
            Err(unknown) if unknown.code == ENDED => None,
            Err(failure) => return Err(failure.error),
        };
        if vcenter.as_ref() == Some(&session.vcenter) {
            return Ok(());
        }
        // Best effort: the session is not used, and vCenter would keep it for half an hour.
        let (doing, this) = ("logging out of vCenter", session_manager.element("_this"));
        let request = self.request(&session.action, Some(&session.cookie), "Logout", &this)?;
        let _ = session.client.send(Call::new(doing, Pace::Read, request)).await;
        let message = "another vCenter answers than the one that the operator has just logged in to: GOVC_URL leads to several, or has \
                       begun to lead to another one; the operator logs in again";
        Err(Error::new(ErrorClass::Transient, message))
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
