use std::{
    future::pending,
    sync::atomic::{AtomicU32, Ordering::Relaxed},
};

use async_trait::async_trait;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use operator_kit::{
    Message,
    testing::{Answer as Reply, ApiServer, Call},
};
use prometheus_client::registry::Registry;
use secrecy::SecretString;

use super::*;
use crate::{
    metrics::Metrics,
    provider::{
        Accepted, CATALOGUE, Claim, ErrorClass, Finding, InstanceId, Openers, OwnVm, Pages, Vm,
        contract::memory::Memory,
    },
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

/// The place that these settings name.
fn endpoint(state: &State) -> &Endpoint {
    state.current.as_ref().unwrap().endpoint().unwrap()
}

/// The record of the place that these settings name.
fn records(state: &State) -> Records {
    Records::default().naming("docker", endpoint(state), Some(&Identity::Unnamed), Timestamp::now())
}

/// What is written for a record that differs from `before`.
fn data(records: &Records, before: &Records) -> BTreeMap<String, String> {
    let changed = records.changed_since(before).unwrap();
    changed.into_iter().map(|(key, text)| (key.to_owned(), text)).collect()
}

/// The `ConfigMap` with this record.
fn object(records: &Records) -> ConfigMap {
    let metadata = ObjectMeta { resource_version: Some("1".to_owned()), ..ObjectMeta::default() };
    let data = Some(data(records, &Records::default()));
    ConfigMap { metadata, data, ..ConfigMap::default() }
}

/// A cloud that never answers.
struct Silent;

#[async_trait]
impl Provider for Silent {
    async fn describe(&self, _: &InstanceId, _: &Claim) -> Result<Vm, Error> {
        pending().await
    }

    async fn delete(&self, _: &OwnVm) -> Result<Accepted, Error> {
        pending().await
    }

    async fn list(&self, _: Pages<'_>) -> Result<(), Error> {
        pending().await
    }

    async fn identity(&self) -> Result<Option<String>, Error> {
        pending().await
    }

    async fn examine(&self) -> Result<Vec<Finding>, Error> {
        pending().await
    }
}

/// The addresses of the former places, if they are known, or the kind of problem.
type Known = Option<Result<Vec<String>, ErrorClass>>;

/// A keeper of the places of a cloud.
struct Stage {
    keeper: Keeper,
    settings: watch::Sender<State>,
    answer: watch::Receiver<Option<Answer>>,
    /// How often the cloud was asked who answers there.
    asked: Arc<AtomicU32>,
}

impl Stage {
    /// A cloud that does not answer.
    fn new(server: &ApiServer, state: State) -> Self {
        Self::of(server, state, || Err(Error::new(ErrorClass::Transient, "it does not answer")))
    }

    /// A cloud that is opened so.
    fn of(
        server: &ApiServer,
        state: State,
        cloud: impl Fn() -> Result<Arc<dyn Provider>, Error> + Send + Sync + 'static,
    ) -> Self {
        let asked = Arc::new(AtomicU32::new(0));
        let count = Arc::clone(&asked);
        let open = move |_: &Snapshot| {
            count.fetch_add(1, Relaxed);
            cloud()
        };
        let (settings, state) = watch::channel(state);
        let (sender, answer) = watch::channel(None);
        let context = CloudsContext {
            client: server.client(),
            namespace: "operator".to_owned(),
            openers: Openers::default(),
            leadership: Leadership::unlimited(),
            metrics: Metrics::new(&mut Registry::default()),
            concurrency: 1,
        };
        let keeper = Keeper::new(&context, CloudSettings::any(state), Box::new(open), sender, Arc::default());
        Self { keeper, settings, answer, asked }
    }

    async fn step(&self, term: &mut TermState) -> Duration {
        self.keeper.step(term, &mut self.settings.subscribe()).await
    }

    /// The addresses of the former places that are known after a step under these settings.
    async fn former(&self, term: &mut TermState, state: &State) -> Known {
        self.settings.send_replace(state.clone());
        self.step(term).await;
        self.known()
    }

    /// The addresses of the former places that are known now.
    fn known(&self) -> Known {
        let answer = self.answer.borrow().clone()?;
        let addresses = |known: Arc<KnownPlaces>| known.former.iter().map(|it| it.address.clone()).collect();
        Some(answer.outcome.map(addresses).map_err(|error| error.class))
    }
}

#[tokio::test(start_paused = true)]
async fn a_doubted_identity_is_asked_for_again_after_a_pause_if_the_cloud_does_not_answer() {
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

#[tokio::test(start_paused = true)]
async fn a_move_after_a_long_time_is_noticed_as_soon_as_the_first_one() {
    let server = ApiServer::expecting([]);
    let stage = Stage::new(&server, docker("tcp://10.0.0.1:2375"));
    let mut term = TermState::default();
    let mut doubt = async |after| {
        sleep(after).await;
        term.doubt = None;
        stage.keeper.doubt(&mut term);
        term.doubt.unwrap() - Instant::now()
    };
    let second = Duration::from_secs(1);
    let mut longest = Duration::ZERO;
    for _ in 0..20 {
        longest = longest.max(doubt(second).await);
    }
    assert!(longest > 60 * second, "addresses that several hosts share are asked less and less: {longest:?}");
    assert!(doubt(3 * LONGEST_DOUBT).await <= second);
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
    assert_eq!(stage.former(&mut term, &good).await, Some(Ok(vec![])));
    let known = stage.former(&mut term, &unreadable).await;
    assert_eq!(known, None, "what was known does not count any more");
    assert_eq!(stage.former(&mut term, &good).await, Some(Ok(vec![String::new()])));
}

/// Settings, and others that are in force for a short time.
fn for_a_short_time() -> [State; 2] {
    ["tcp://10.0.0.1:2375", "tcp://10.0.0.2:2375"].map(docker)
}

#[test]
fn a_former_place_says_since_when_another_identity_answers_there() {
    let [here, there] = for_a_short_time();
    let now = Timestamp::now();
    let named = |records: &Records, state: &State, identity: &str| {
        let identity = Identity::new(Some(identity.to_owned()));
        records.naming("docker", endpoint(state), Some(&identity), now)
    };
    let once = named(&Records::default(), &there, "one");
    let moved = named(&once, &there, "two");
    for (before, has_moved) in [(once, false), (moved, true)] {
        let records = named(&before, &here, "one");
        let key = key("docker", &endpoint(&here).address);
        let known = KnownPlaces::new(&records, "docker", key, &Identity::Unnamed);
        assert_eq!(known.former[0].moved_at.is_some(), has_moved, "{records:?}");
    }
}

#[tokio::test]
async fn a_place_is_recorded_even_if_the_settings_are_set_back_while_its_identity_is_asked_for() {
    let [here, there] = for_a_short_time();
    let (before, now) = (records(&here), Timestamp::now());
    let named = before.naming("docker", endpoint(&there), None, now);
    let set_back = named.naming("docker", endpoint(&here), None, now);
    let none = Records::default();
    let new = data(&none.naming("docker", endpoint(&there), None, now), &none);
    let server = ApiServer::expecting([
        Call::patch(RECORD).body_with(json!({ "data": new })).answer(Reply::object(&object(&named))),
        Call::patch(RECORD).answer(Reply::object(&object(&set_back))),
    ]);
    let stage = Stage::of(&server, here.clone(), || Ok(Arc::new(Silent)));
    let mut term = TermState { object: Some(object(&before)), ..TermState::default() };
    assert_eq!(stage.former(&mut term, &here).await, Some(Ok(vec![])));

    stage.settings.send_replace(there.clone());
    let mut settings = stage.settings.subscribe();
    let set_back_while_asked = async {
        while stage.asked.load(Relaxed) == 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(stage.known(), None, "what was known does not count any more");
        stage.settings.send_replace(here.clone());
    };
    let (pause, ()) = tokio::join!(stage.keeper.step(&mut term, &mut settings), set_back_while_asked);
    assert_eq!(pause, Duration::ZERO);
    assert_eq!(stage.known(), None);
    let address = endpoint(&there).address.clone();
    assert_eq!(stage.former(&mut term, &here).await, Some(Ok(vec![address])));
}

#[tokio::test]
async fn a_place_is_recorded_even_if_its_first_write_fails_and_the_settings_are_set_back() {
    let [here, there] = for_a_short_time();
    let before = records(&here);
    let address = &endpoint(&there).address;
    let after = before.with_former("docker", address, Timestamp::now());
    let cases: [(Reply, Known); 3] = [
        (Reply::error(500, "InternalError", ""), Some(Err(ErrorClass::Transient))),
        (Reply::error(403, "Forbidden", ""), Some(Err(ErrorClass::Unauthorized))),
        // The keeper of another cloud wrote to the same ConfigMap.
        (Reply::conflict("configmaps", PLACES), None),
    ];
    for (answer, known) in cases {
        let server = ApiServer::expecting([
            Call::patch(RECORD).answer(answer),
            Call::patch(RECORD).answer(Reply::object(&object(&after))),
        ]);
        let stage = Stage::new(&server, here.clone());
        let mut term = TermState { object: Some(object(&before)), ..TermState::default() };
        assert_eq!(stage.former(&mut term, &here).await, Some(Ok(vec![])));
        assert_eq!(stage.former(&mut term, &there).await, known);
        assert_eq!(stage.former(&mut term, &here).await, Some(Ok(vec![address.clone()])));
    }
}

#[tokio::test]
async fn an_identity_is_asked_for_once_although_another_cloud_writes_to_the_record_meanwhile() {
    let here = docker("tcp://10.0.0.1:2375");
    let named = Records::default().naming("docker", endpoint(&here), None, Timestamp::now());
    let server = ApiServer::expecting([
        Call::patch(RECORD).answer(Reply::conflict("configmaps", PLACES)),
        Call::patch(RECORD).answer(Reply::as_sent()),
    ]);
    let stage = Stage::of(&server, here.clone(), || Ok(Arc::new(Memory::default())));
    let mut term = TermState { object: Some(object(&named)), ..TermState::default() };
    assert_eq!(stage.former(&mut term, &here).await, None);
    assert_eq!(stage.former(&mut term, &here).await, Some(Ok(vec![])));
    assert_eq!(stage.asked.load(Relaxed), 1);
}

#[tokio::test]
async fn a_place_that_cloud_api_adaptor_alone_names_is_recorded_once_and_becomes_the_current_one() {
    let [here, there] = for_a_short_time();
    let (before, now) = (records(&here), Timestamp::now());
    let (address, reported) = (&endpoint(&there).address, ("docker", endpoint(&there).clone()));
    let former = before.with_former("docker", address, now);
    let current = former.naming("docker", endpoint(&there), Some(&Identity::Unnamed), now);
    let server = ApiServer::expecting([
        Call::patch(RECORD).answer(Reply::error(500, "InternalError", "")),
        Call::patch(RECORD).answer(Reply::object(&object(&former))),
        Call::patch(RECORD).answer(Reply::object(&object(&current))),
    ]);
    let stage = Stage::of(&server, here.clone(), || Ok(Arc::new(Memory::default())));
    let mut term = TermState { object: Some(object(&before)), ..TermState::default() };
    assert_eq!(stage.former(&mut term, &here).await, Some(Ok(vec![])));
    stage.keeper.settings.report(&reported);
    assert_eq!(stage.former(&mut term, &here).await, Some(Err(ErrorClass::Transient)));
    // The first write failed. Then it is recorded, and reported again.
    for _ in 0..3 {
        assert_eq!(stage.former(&mut term, &here).await, Some(Ok(vec![address.clone()])));
        stage.keeper.settings.report(&reported);
    }
    let address = endpoint(&here).address.clone();
    assert_eq!(stage.former(&mut term, &there).await, Some(Ok(vec![address])));
}

#[tokio::test(start_paused = true)]
async fn a_report_cuts_the_question_for_an_identity_off_once_alone() {
    let [here, there] = for_a_short_time();
    let before = Records::default().naming("docker", endpoint(&here), None, Timestamp::now());
    let reported = ("docker", endpoint(&there).clone());
    let after = before.with_former("docker", &reported.1.address, Timestamp::now());
    let server = ApiServer::expecting([Call::patch(RECORD).answer(Reply::object(&object(&after)))]);
    let stage = Stage::of(&server, here, || Ok(Arc::new(Silent)));
    let mut term = TermState { object: Some(object(&before)), ..TermState::default() };
    for (asked, is_cut_off) in [(1, true), (2, false)] {
        let report_while_asked = async {
            while stage.asked.load(Relaxed) < asked {
                tokio::task::yield_now().await;
            }
            stage.keeper.settings.report(&reported);
        };
        let (pause, ()) = tokio::join!(stage.step(&mut term), report_while_asked);
        assert_eq!(pause == Duration::ZERO, is_cut_off, "{pause:?}");
    }
}

#[tokio::test]
async fn a_place_that_cannot_be_written_is_reported_once() {
    let [here, there] = for_a_short_time();
    let fails = || Call::patch(RECORD).answer(Reply::error(500, "InternalError", ""));
    let server = ApiServer::expecting([fails(), fails()]);
    let stage = Stage::new(&server, there);
    let mut answer = stage.answer.clone();
    let mut term = TermState { object: Some(object(&records(&here))), ..TermState::default() };
    stage.step(&mut term).await;
    assert!(answer.borrow_and_update().is_some());
    stage.step(&mut term).await;
    assert!(!answer.has_changed().unwrap());
}

#[tokio::test]
async fn an_equal_answer_stays_the_same_object_so_that_the_provider_is_not_opened_again() {
    let [here, _] = for_a_short_time();
    let server = ApiServer::expecting([]);
    let mut term = TermState { object: Some(object(&records(&here))), ..TermState::default() };
    let stage = Stage::new(&server, here);
    let mut known = Vec::new();
    for _ in 0..2 {
        stage.step(&mut term).await;
        known.push(stage.answer.borrow().clone().unwrap().outcome.unwrap());
    }
    assert!(Arc::ptr_eq(&known[0], &known[1]));
}

#[tokio::test]
async fn a_cloud_that_keeps_failing_with_another_text_is_reported_once() {
    let [_, there] = for_a_short_time();
    let known = Records::default().naming("docker", endpoint(&there), None, Timestamp::now());
    let server = ApiServer::expecting([]);
    let (count, class) =
        (AtomicU32::new(0), [ErrorClass::Unauthorized, ErrorClass::Unauthorized, ErrorClass::Invalid]);
    let stage = Stage::of(&server, there, move || {
        let number = count.fetch_add(1, Relaxed);
        Err(Error::new(class[number as usize], Message::public(format!("request {number}"))))
    });
    let mut answer = stage.answer.clone();
    let mut term = TermState { object: Some(object(&known)), ..TermState::default() };
    for is_news in [true, false, true] {
        stage.step(&mut term).await;
        assert_eq!(answer.has_changed().unwrap(), is_news, "{:?}", stage.known());
        answer.mark_unchanged();
    }
}

#[tokio::test]
async fn a_place_is_recorded_even_if_the_settings_are_set_back_before_the_record_is_read() {
    let [here, there] = for_a_short_time();
    let before = records(&here);
    let address = &endpoint(&there).address;
    let after = before.with_former("docker", address, Timestamp::now());
    let server = ApiServer::expecting([Call::patch(RECORD).answer(Reply::object(&object(&after)))]);
    let stage = Stage::new(&server, here.clone());
    let mut term = TermState::default();
    assert_eq!(stage.former(&mut term, &there).await, None);
    term.take(Ok(Some(object(&before))), "operator/places");
    assert_eq!(stage.former(&mut term, &here).await, Some(Ok(vec![address.clone()])));
}

#[tokio::test]
async fn a_new_place_is_written_once_before_its_identity_is_asked_for_and_once_with_it() {
    let here = docker("tcp://10.0.0.1:2375");
    let (none, known) = (Records::default(), records(&here));
    let named = none.naming("docker", endpoint(&here), None, Timestamp::now());
    let server = ApiServer::expecting([
        Call::patch(RECORD).answer(Reply::as_sent()),
        Call::patch(RECORD).body_with(json!({ "data": data(&named, &none) })).answer(Reply::as_sent()),
        Call::patch(RECORD).body_with(json!({ "data": data(&known, &none) })).answer(Reply::as_sent()),
    ]);
    let stage = Stage::of(&server, here.clone(), || Ok(Arc::new(Memory::default())));
    let mut term = TermState { object: Some(ConfigMap::default()), ..TermState::default() };
    assert_eq!(stage.former(&mut term, &here).await, None);
    term.take(Ok(Some(object(&none))), "operator/places");
    for _ in 0..3 {
        assert_eq!(stage.former(&mut term, &here).await, Some(Ok(vec![])));
    }
    assert_eq!(stage.asked.load(Relaxed), 1);
}
