//! An operator that runs both controllers of peerpod-operator beside its own work, in one process and as one leader.
//!
//! `cargo run --example embed -- SETTINGS_DIR CREDENTIALS_DIR`, with a kubeconfig.

use std::{env, error::Error};

use futures::join;
use operator_kit::{
    client,
    lease::Election,
    lifecycle, process, shutdown,
    telemetry::{self, LogFormat},
};
use peerpod_operator::{
    NAMESPACE,
    metrics::Metrics,
    names, operator_kit,
    peerpod::{self, PeerPods},
    peerpodconfig::{self, MountedSettings},
    provider::{CATALOGUE, CloudSettings, Openers},
    settings::{self, Folders},
};
use prometheus_client::registry::Registry;

fn main() -> Result<(), Box<dyn Error>> {
    lifecycle::block_on(run())?
}

async fn run() -> Result<(), Box<dyn Error>> {
    // What the embedding program already has: a log, signals, a client, a registry, an election.
    telemetry::init("peerpod_operator", LogFormat::Text);
    let (stop, client, mut registry) = (shutdown::on_signals()?, client::infer().await?, Registry::default());
    let election = Election::new(client.clone(), NAMESPACE, "my-operator", &process::name());
    let leadership = election.leadership();

    // The clouds, by the settings in these folders.
    let [settings, credentials] = [1, 2].map(|index| env::args().nth(index));
    let folders = Folders {
        settings: settings.ok_or("which folder holds the settings?")?.into(),
        credentials: credentials.map(Into::into),
    };
    let (settings, _) = settings::watch(folders, CATALOGUE, stop.clone(), |_| ()).await;
    let clouds = vec![CloudSettings::any(settings)];

    // The two controllers, and the program's own.
    let (listed, synced) = tokio::sync::oneshot::channel();
    let listed = || listed.send(()).unwrap_or_default();
    let (one, two) = (client.clone(), client);
    let (metrics, options) = (Metrics::new(&mut registry), peerpod::Options::new(NAMESPACE));
    let (openers, leads) = (Openers::default(), leadership.clone());
    let peerpods = PeerPods::new(one, clouds.clone(), openers, leads, metrics.clone(), &options);
    let peerpods = peerpods.run(listed, stop.clone());
    // Where the folders are mounted from: a PeerPodConfig that names others, or another place, gets no cloud-api-adaptor.
    let (config_map, secret) = (names::CONFIG_MAP.to_owned(), names::SECRET.to_owned());
    let mounted = Some(MountedSettings { config_map, secret, clouds });
    let config = peerpodconfig::Options { mounted, ..peerpodconfig::Options::new(NAMESPACE) };
    let configs = peerpodconfig::run(two, config, leadership, metrics, || (), stop.clone());
    let own = async { println!("this operator's own controllers run here") };
    let work = Box::pin(async { ((), (), ()) = join!(peerpods, configs, own) });
    lifecycle::run(work, Some(election), async { synced.await.unwrap_or_default() }, &stop).await;
    Ok(())
}
