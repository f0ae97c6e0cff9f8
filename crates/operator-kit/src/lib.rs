//! What a Kubernetes operator needs around its controllers, on [kube](https://docs.rs/kube).
//!
//! # A tour
//!
//! The process, from its start to its end:
//!
//! | module | what it has |
//! |---|---|
//! | [`telemetry`] | log lines, as text or JSON |
//! | [`shutdown`] | the token that SIGTERM and SIGINT cancel |
//! | [`client`] | a client of the API server that suits a controller |
//! | [`http`] | the server of `/healthz`, `/readyz` and `/metrics`, also with TLS for authorized readers, and of a page of your own |
//! | [`metrics`], [`process`] | a table of metrics with bounded labels; the metrics of the process itself |
//! | [`labels!`] | the labels of an enum; the compiler reports a variant without one |
//! | [`lease`], [`Leadership`] | leader election by a Lease; whether this process may act, asked before each step |
//! | [`lifecycle`] | work and election, stopped together and in time |
//! | [`listener`], [`connection_limit`] | the parts of a server that no client can block |
//! | `program` | all of these as a program with one line in its `main`; needs the feature `program` |
//!
//! A reconcile:
//!
//! | module | what it has |
//! |---|---|
//! | [`controller`] | a controller with caches that acts while this process leads, and tries again what failed |
//! | [`watch`], [`changes`] | watches that retry on their own; changes of a value as a stream |
//! | [`projection`], [`metadata`] | no more of an object in memory than what is read of it |
//! | [`api_call`], [`crd`] | calls with a deadline, and what their answers mean; a CRD, and the text for a missing one |
//! | [`installed`] | a CRD as it is installed: older than the program, or later |
//! | [`backoff`] | delays with jitter, for each object on its own |
//! | [`apply`], [`differs`], [`quantity`] | an object as wanted, without a write if it is; quantities such as `500m` and `4Gi` |
//! | [`finalizer`] | the finalizer added, and removed by one JSON patch, if the object is still the one that was read |
//! | [`status`], [`conditions`] | the status and the events; conditions, and an enum of their reasons |
//! | [`message`], [`text`] | texts that tenants and administrators read differently; texts cut to fit |
//!
//! The installation and the tests:
//!
//! | module | what it has |
//! |---|---|
//! | [`permission`] | rights as constants beside the code that uses them, and a role with its binding made of them |
//! | [`generated`] | generated files, written or compared |
//! | [`pod`] | parts of a Pod that runs an operator |
//! | `installation` | the objects and files that install an operator; needs the feature `program` |
//! | `testing` | a scripted API server for unit tests; needs the feature `testing` |
//!
//! A whole new operator uses `program`, `installation` and [`controller::Host`], as `examples/podset` and `examples/ptemplate` of the
//! repository do. [`apply`] and [`installed`] are in `examples/ptemplate`. peerpod-operator itself uses the lower modules, because its
//! command line, its controllers and its rules for objects of other programs are its own.
//!
//! # An operator
//!
//! `examples/configmaps.rs` is a whole operator in 70 lines. Its surroundings are these:
//!
//! ```no_run
//! # use operator_kit::{ListenAt, client, controller::Host, http, lease::Election, lifecycle, process, shutdown, telemetry};
//! # use prometheus_client::registry::Registry;
//! # async fn controllers(_: Host) {}
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! telemetry::init(env!("CARGO_CRATE_NAME"), telemetry::LogFormat::Json);
//! let shutdown = shutdown::on_signals()?;
//! let (mut registry, readiness) = (Registry::default(), http::Readiness::default());
//! process::register(&mut registry);
//! let [health, metrics] = [8081, 8080].map(|port| ListenAt::Everywhere(port).into());
//! let endpoints =
//!     http::Endpoints { health, metrics, secure: None, page: None, readiness: readiness.clone(), registry };
//! let servers = endpoints.serve(&shutdown)?;
//!
//! let client = client::infer().await?;
//! let election = Election::new(client.clone(), "my-namespace", "my-operator", &process::name());
//! let leadership = election.leadership();
//! let host = Host { client, crds: &[], leadership, readiness: readiness.clone(), shutdown: shutdown.clone() };
//! let work = controllers(host); // each cache of the host is something that the readiness needs; ends after `shutdown`
//! lifecycle::run(work, Some(election), readiness.ready(), &shutdown).await; // when the first lists are there
//! shutdown.cancel(); // also if the work ended by itself: the servers end after it
//! servers.stopped().await;
//! # Ok(())
//! # }
//! ```
//!
//! # What it leaves to the program
//!
//! - The program owns the async runtime, the metrics registry and the tracing subscriber, and takes the modules that it wants. A subscriber
//!   that [`telemetry::init`] did not make needs [`telemetry::WITHOUT_SECRETS`]: otherwise the log may hold Secrets.
//! - One thing is global: [`client`] makes ring rustls' provider of cryptography, unless the program has chosen one.
//! - The program chooses the version of Kubernetes: a feature of k8s-openapi, such as `v1_33`.
//! - The field manager is a parameter: one name for all that an operator writes, and another one for [`finalizer::add`].
//! - The program chooses the names of its flags. Errors name them where it says so: see [`ListenAt::chosen_by`] and
//!   [`Election::with_namespace_flag`](lease::Election::with_namespace_flag).

pub mod api_call;
pub mod apply;
pub mod backoff;
pub mod changes;
pub mod client;
pub mod conditions;
pub mod connection_limit;
pub mod controller;
pub mod crd;
pub mod differs;
pub mod finalizer;
pub mod generated;
pub mod http;
#[cfg(feature = "program")]
pub mod installation;
pub mod installed;
mod labels;
mod leadership;
pub mod lease;
pub mod lifecycle;
pub mod listener;
pub mod message;
pub mod metadata;
pub mod metrics;
pub mod permission;
pub mod pod;
pub mod process;
#[cfg(feature = "program")]
pub mod program;
pub mod projection;
pub mod quantity;
pub mod shutdown;
pub mod status;
pub mod telemetry;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod text;
pub mod watch;
#[cfg(test)]
mod widget;

pub use backoff::Backoff;
pub use kube::runtime::events::EventType;
pub use leadership::Leadership;
pub use listener::{ListenAt, ListenAtError, ListenError};
pub use message::Message;
pub use permission::Permission;
