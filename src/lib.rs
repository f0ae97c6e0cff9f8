//! Deletes the VMs of peer pods that no longer exist, and deploys cloud-api-adaptor, which creates them.
//!
//! # Modules
//!
//! | module | content |
//! |---|---|
//! | [`api`] | the custom resources that users, cloud-api-adaptor and this operator share |
//! | [`settings`] | mounted folders become typed settings, reloaded while running |
//! | [`provider`] | the contract with a cloud, and one folder for each cloud |
//! | [`peerpod`] | the controller that deletes VMs: observe, decide (pure), apply, report |
//! | [`peerpodconfig`] | the controller that sets peer pods up in a cluster: cloud-api-adaptor, admission, capacity of nodes |
//! | [`sweep`] | VMs that no PeerPod tracks, and PeerPods whose VM is gone |
//! | [`webhook`] | the admission: from a Pod to a peer pod, its server and its certificates |
//! | [`cluster`] | the identity of the cluster |
//! | [`metrics`] | the table of metrics |
//! | [`names`] | names of objects, labels and images that several of these share |
//! | [`install`] | the typed objects of an installation, for the generators |
//! | [`cli`] | the command line, which puts it all together |
//!
//! What any operator needs is in a crate of its own, [`operator_kit`]: leader election, health, logs, shutdown, backoff.
//!
//! # In another operator
//!
//! Depend on it with `default-features = false`, and choose a version of Kubernetes by a feature of k8s-openapi, such as `v1_36`.
//!
//! Rights: [`peerpod::PERMISSIONS`] and [`cluster::PERMISSIONS`], those of [`provider::places`] in the host's namespace, and those that the
//! [`provider::Cloud`] names. With the other controllers, the constants of [`sweep`], [`peerpodconfig`] and its rooms.
//!
//! A tracing subscriber that [`operator_kit::telemetry::init`] did not make needs [`operator_kit::telemetry::WITHOUT_SECRETS`].
//!
//! The host owns the async runtime, tracing, the metrics registry and leadership (its own, or a
//! [`operator_kit::lease::Election`]); a controller is a future. Make the client with [`operator_kit::client`]: kube's own repeats each
//! request that an API server answers with 429, so the reason does not reach a status:
//!
//! ```no_run
//! # async fn example(client: kube::Client) -> Result<(), Box<dyn std::error::Error>> {
//! use peerpod_operator::metrics::{DEFAULT_SETTINGS, Metrics};
//! use peerpod_operator::provider::{CATALOGUE, CloudSettings, Openers};
//! use peerpod_operator::{NAMESPACE, operator_kit::Leadership, peerpod, settings};
//! use tokio_util::sync::CancellationToken;
//!
//! let shutdown = CancellationToken::new();
//! let folders = settings::Folders { settings: "/etc/settings".into(), credentials: Some("/etc/credentials".into()) };
//! let metrics = Metrics::new(&mut prometheus_client::registry::Registry::default());
//! let recorded = metrics.clone();
//! let on_change = move |state: &settings::State| {
//!     recorded.settings_reloaded(DEFAULT_SETTINGS, state.rejected.is_none());
//!     recorded.settings_usable(DEFAULT_SETTINGS, Some(state.usable()));
//! };
//! let (settings, _) = settings::watch(folders, CATALOGUE, shutdown.clone(), on_change).await;
//! let clouds = [CloudSettings::any(settings)]; // one for each cloud
//! let openers = Openers::default(); // with a provider of your own: `.with("aws", …)`
//! let leadership = Leadership::unlimited(); // this process is alone
//! let options = peerpod::Options::new(NAMESPACE);
//! let controller = peerpod::PeerPods::new(client, clouds, openers, leadership, metrics, &options);
//! controller.run(|| println!("synced"), shutdown).await; // with a sweep beside it: `sweep::Sweeper`
//! # Ok(())
//! # }
//! ```

pub mod api;
#[cfg(feature = "cli")]
pub mod cli;
pub mod cluster;
#[cfg(feature = "cli")]
pub mod install;
pub mod metrics;
pub mod names;
mod own_pods;
pub mod peerpod;
pub mod peerpodconfig;
pub mod provider;
pub mod settings;
pub mod sweep;
mod watched_files;
pub mod webhook;

pub use names::NAMESPACE;
pub use operator_kit;

/// The oldest Kubernetes that the operator is tested on.
pub const OLDEST_KUBERNETES: &str = "1.33";
