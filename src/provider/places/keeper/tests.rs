use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use operator_kit::testing::{Answer as Reply, ApiServer, Call};
use secrecy::SecretString;

use super::*;
use crate::{
    provider::{CATALOGUE, ErrorClass},
    settings::Raw,
};

const RECORD: &str = "/api/v1/namespaces/operator/configmaps/peerpod-operator-places";

/// Settings of docker that name this daemon.
fn docker(host: &str) -> State {
    let given = [("CLOUD_PROVIDER", "docker"), ("DOCKER_HOST", host)];
    let settings = given.map(|(name, value)| (name.to_owned(), SecretString::from(value))).into();
    let snapshot = Snapshot::parse(&Raw { settings, ..Raw::default() }, CATALOGUE).unwrap();
    State { current: Some(Arc::new(snapshot)), generation: 1, ..State::default() }
}

/// The record of the place that these settings name.
fn records(state: &State) -> Records {
    let endpoint = state.current.as_ref().unwrap().endpoint().unwrap();
    Records::default().naming("docker", endpoint, Some(&Host::Unnamed), Timestamp::now())
}

/// The `ConfigMap` with this record.
fn object(records: &Records) -> ConfigMap {
    let data = records.changed_since(&Records::default()).unwrap();
    let data = data.into_iter().map(|(key, text)| (key.to_owned(), text)).collect();
    let metadata = ObjectMeta { resource_version: Some("1".to_owned()), ..ObjectMeta::default() };
    ConfigMap { metadata, data: Some(data), ..ConfigMap::default() }
}

/// A keeper of a cloud that does not answer.
struct Stage {
    keeper: Keeper,
    settings: watch::Sender<State>,
    answer: watch::Receiver<Option<Answer>>,
    /// How often the cloud was asked which host is there.
    asked: Arc<AtomicU32>,
}

impl Stage {
    fn new(server: &ApiServer, state: State) -> Self {
        let asked = Arc::new(AtomicU32::new(0));
        let count = Arc::clone(&asked);
        let open = move |_: &Snapshot| -> Result<Arc<dyn Provider>, Error> {
            count.fetch_add(1, Relaxed);
            Err(Error::new(ErrorClass::Transient, "it does not answer"))
        };
        let (settings, state) = watch::channel(state);
        let (sender, answer) = watch::channel(None);
        let keeper = Keeper::new(KeeperContext {
            client: server.client(),
            namespace: "operator".to_owned(),
            open: Box::new(open),
            settings: CloudSettings::any(state),
            leadership: Leadership::unlimited(),
            answer: sender,
            host_changed: Arc::default(),
        });
        Self { keeper, settings, answer, asked }
    }

    async fn step(&self, term: &mut TermState) -> Duration {
        self.keeper.step(term, &mut self.settings.subscribe()).await
    }
}

#[tokio::test(start_paused = true)]
async fn a_doubted_host_that_does_not_answer_is_asked_again_after_a_pause() {
    let (server, settings) = (ApiServer::expecting([]), docker("tcp://10.0.0.1:2375"));
    let object = object(&records(&settings));
    let stage = Stage::new(&server, settings);
    let due = Duration::from_secs(7);
    let doubt = Some(Instant::now() + due);
    let mut term = TermState { object: Some(object), doubt, ..TermState::default() };
    assert_eq!(stage.step(&mut term).await, due);
    assert_eq!(stage.asked.load(Relaxed), 0);
    sleep(due).await;
    for times in 1..5 {
        let pause = stage.step(&mut term).await;
        assert!(pause >= Duration::from_millis(500), "{pause:?}");
        assert_eq!(stage.asked.load(Relaxed), times);
    }
}

#[tokio::test]
async fn what_a_failing_watch_should_bring_is_not_waited_for() {
    let server = ApiServer::expecting([Call::patch(RECORD).answer(Reply::as_sent())]);
    let stage = Stage::new(&server, docker("tcp://10.0.0.1:2375"));
    let refused = messages::failed("read", "operator/places", Some(403), &"no right to watch");
    let unreadable = Some(refused.clone());
    let mut term = TermState { object: Some(ConfigMap::default()), unreadable, ..TermState::default() };
    stage.step(&mut term).await;
    let answer = stage.answer.borrow().clone();
    assert_eq!(answer.map(|it| it.outcome), Some(Err(refused)));
}

#[tokio::test]
async fn that_settings_could_not_be_read_is_recorded_even_if_they_are_set_back_before() {
    let (good, unreadable) = (docker("tcp://10.0.0.1:2375"), docker("unix:///var/run/docker.sock"));
    let records = records(&good);
    let with_unknown = records.with_unknown(|_| true, Timestamp::now());
    let server = ApiServer::expecting([
        Call::patch(RECORD).answer(Reply::error(500, "InternalError", "")),
        Call::patch(RECORD).answer(Reply::object(&object(&with_unknown))),
    ]);
    let stage = Stage::new(&server, good.clone());
    let mut term = TermState { object: Some(object(&records)), ..TermState::default() };
    let mut former = async |settings: &State| {
        stage.settings.send_replace(settings.clone());
        stage.step(&mut term).await;
        let answer = stage.answer.borrow().clone();
        let addresses =
            |known: &KnownPlaces| known.former.iter().map(|it| it.address.clone()).collect::<Vec<_>>();
        answer.map(|it| addresses(&it.outcome.unwrap()))
    };
    assert_eq!(former(&good).await, Some(vec![]));
    assert_eq!(former(&unreadable).await, None, "what was known does not count any more");
    assert_eq!(former(&good).await, Some(vec![String::new()]));
}
