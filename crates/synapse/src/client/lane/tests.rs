//! Slots, credit and the queue of a lane, without a server.

use std::task::Wake;

use blocker::{
    Clock, FlushRequest, ListRequest, ManualClock, Name, Namespace, ObjectId, ReadRequest, Scope,
    WriteRequest,
};

use super::state::SlotState;
use super::*;
use crate::Address;

fn lane(slots: u32) -> Lane {
    let mut config = ClientConfig::new(Address::Unix("nowhere".into()));
    config.slots = slots;
    Lane::new(0, &config, Arc::default(), Capabilities::full(4 << 20), Features::default(), Timestamp(0))
}

fn welcome(slots: u32, bytes: u64, is_resumed: bool) -> Welcome {
    let mut welcome = Welcome::new([1; 16], 1, Credits { slots, bytes }, Capabilities::full(4 << 20));
    (welcome.is_resumed, welcome.features) = (is_resumed, Features(Features::CREDIT));
    welcome
}

fn write(len: usize) -> Option<Request> {
    let object = ObjectId::new(Namespace::new("n").unwrap(), Name::new("o").unwrap());
    Some(Request::Change(WriteRequest::new(object, 0, vec![1; len]).into()))
}

fn submit(lane: &Lane, len: usize) -> RequestId {
    match lane.submit(&mut write(len), None, &Context::from_waker(Waker::noop())) {
        Submitted::Queued(id) => id,
        _ => panic!("no slot"),
    }
}

/// However late the task begins: the client was opened over the first lane's connection.
#[test]
fn requests_wait_for_the_task_of_the_first_lane() {
    let mut config = ClientConfig::new(Address::Unix("nowhere".into()));
    config.reconnect_timeout = Duration::ZERO;
    let capabilities = Capabilities::full(4 << 20);
    let [first, second] = [0, 1].map(|index| {
        Lane::new(index, &config, Arc::default(), capabilities, Features::default(), Timestamp(0))
    });
    let submit = |lane: &Lane| lane.submit(&mut write(10), None, &Context::from_waker(Waker::noop()));
    assert!(matches!(submit(&first), Submitted::Waits(_)) && first.is_up());
    assert!(matches!(submit(&second), Submitted::Failed(_)) && !second.is_up());
}

#[test]
fn calls_dropped_while_there_is_no_connection_leave_nothing_in_the_queue() {
    let lane = lane(4);
    lane.connected(&welcome(4, 1 << 20, false));
    lane.disconnected(Timestamp(0), Error::Retryable("gone".into()));
    let kept = submit(&lane, 10);
    for _ in 0..1000 {
        lane.abandon(submit(&lane, 10));
    }
    let state = lane.state.lock();
    assert!(state.queue.len() <= 8, "{}", state.queue.len());
    assert!(state.queue.contains(&kept));
}

#[test]
fn abandoned_requests_count_against_the_grant_of_the_next_connection() {
    let lane = lane(4);
    lane.connected(&welcome(4, 1 << 20, false));
    let gone = submit(&lane, 100_000);
    lane.fill(&mut Output::default(), Timestamp(0), false);
    lane.abandon(gone);
    let sent_bytes = lane.state.lock().sent_bytes;
    assert!(sent_bytes > 100_000);
    lane.disconnected(Timestamp(0), Error::Retryable("gone".into()));
    lane.connected(&welcome(4, 150_000, true));
    assert_eq!(lane.state.lock().sent_bytes, sent_bytes);
    // The next request of this size has to wait for the response to the cancellation.
    let next = submit(&lane, 100_000);
    lane.fill(&mut Output::default(), Timestamp(0), false);
    assert_eq!(lane.state.lock().slots[next.slot as usize].state, SlotState::Queued);
    lane.cancelled(gone).unwrap();
    assert_eq!(lane.state.lock().sent_bytes, 0);
    lane.fill(&mut Output::default(), Timestamp(0), false);
    assert_eq!(lane.state.lock().slots[next.slot as usize].state, SlotState::Sent);
}

#[test]
fn credit_for_a_request_larger_than_the_grant_is_requested_once_and_the_request_sent_when_granted() {
    let lane = lane(4);
    lane.connected(&welcome(4, 50_000, false));
    let id = submit(&lane, 100_000);
    let mut output = Output::default();
    for _ in 0..3 {
        lane.fill(&mut output, Timestamp(0), false);
    }
    assert_eq!(output.pending_bytes(), codec::HEADER_BYTES, "requested more than once");
    lane.granted(60_000);
    lane.fill(&mut output, Timestamp(0), false);
    assert_eq!(output.pending_bytes(), 2 * codec::HEADER_BYTES, "not requested again");
    lane.granted(1 << 20);
    lane.fill(&mut output, Timestamp(0), false);
    assert_eq!(lane.state.lock().slots[id.slot as usize].state, SlotState::Sent);
}

/// A waker that counts.
#[derive(Default)]
struct Wakes(AtomicU32);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// Leaves a change in doubt on the first of two lanes by `leave`, and returns the lanes and the
/// change.
fn in_doubt(leave: impl Fn(&Lane, RequestId)) -> ([Lane; 2], RequestId) {
    let config = ClientConfig::new(Address::Unix("nowhere".into()));
    let doubts = Arc::<Doubts>::default();
    let capabilities = Capabilities::full(4 << 20);
    let lanes = [0, 1].map(|index| {
        Lane::new(index, &config, Arc::clone(&doubts), capabilities, Features::default(), Timestamp(0))
    });
    lanes.iter().for_each(|lane| _ = lane.connected(&welcome(8, 16 << 20, false)));
    let change = submit(&lanes[0], 10);
    lanes[0].fill(&mut Output::default(), Timestamp(0), false);
    leave(&lanes[0], change);
    (lanes, change)
}

/// Submits requests that concern the object of `write`, and then one that does not.
fn submit_later(lane: &Lane) -> (Vec<RequestId>, RequestId) {
    let [namespace, other] = ["n", "m"].map(|name| Namespace::new(name).unwrap());
    let object = ObjectId::new(namespace.clone(), Name::new("o").unwrap());
    let submit = |request| match lane.submit(&mut Some(request), None, &Context::from_waker(Waker::noop())) {
        Submitted::Queued(id) => id,
        _ => panic!("no slot"),
    };
    let concerned = [
        Request::Read(ReadRequest::new(object.clone(), 0, 10)),
        write(10).unwrap(),
        Request::List(ListRequest::new(namespace)),
        Request::Flush(FlushRequest::new(Scope::Object(object))),
    ];
    let elsewhere = ObjectId::new(other, Name::new("o").unwrap());
    (concerned.map(submit).to_vec(), submit(Request::Read(ReadRequest::new(elsewhere, 0, 10))))
}

fn state_of(lane: &Lane, id: RequestId) -> SlotState {
    lane.state.lock().slots[id.slot as usize].state
}

#[test]
fn no_lane_sends_what_would_overtake_a_dropped_change() {
    let ([first, second], change) = in_doubt(Lane::abandon);
    let wakes = Arc::<Wakes>::default();
    second.register(&Waker::from(Arc::clone(&wakes)));
    let (concerned, elsewhere) = submit_later(&second);
    let before = wakes.0.load(Ordering::SeqCst);
    second.fill(&mut Output::default(), Timestamp(0), false);
    assert!(concerned.iter().all(|id| state_of(&second, *id) == SlotState::Queued));
    assert_eq!(state_of(&second, elsewhere), SlotState::Sent);
    first.cancelled(change).unwrap();
    assert_eq!(wakes.0.load(Ordering::SeqCst), before + 1);
    second.fill(&mut Output::default(), Timestamp(0), false);
    assert!(concerned.iter().all(|id| state_of(&second, *id) == SlotState::Sent));
}

#[test]
fn a_change_whose_deadline_has_passed_is_in_doubt_until_its_session_ends() {
    let ([first, second], change) = in_doubt(|lane, change| {
        let mut state = lane.state.lock();
        (state.slots[change.slot as usize].deadline, state.due) = (Timestamp(1), Timestamp(1));
        drop(state);
        lane.expire(Timestamp(1));
    });
    assert_eq!(state_of(&first, change), SlotState::Done);
    let (concerned, _) = submit_later(&second);
    let fill = || second.fill(&mut Output::default(), Timestamp(1), false);
    // The session continues on the next connection, and the server may still execute the change.
    first.connected(&welcome(8, 16 << 20, true));
    fill();
    assert!(concerned.iter().all(|id| state_of(&second, *id) == SlotState::Queued));
    first.connected(&welcome(8, 16 << 20, false));
    fill();
    assert!(concerned.iter().all(|id| state_of(&second, *id) == SlotState::Sent));
}

#[test]
fn a_call_that_fails_while_it_takes_a_free_slot_leaves_the_slot_to_the_next_one() {
    let clock = ManualClock::new();
    let mut config = ClientConfig::new(Address::Unix("nowhere".into()));
    (config.slots, config.clock) = (1, Arc::new(clock.clone()));
    let capabilities = Capabilities::full(4 << 20);
    let lane = Lane::new(0, &config, Arc::default(), capabilities, Features::default(), clock.now());
    lane.connected(&welcome(1, 1 << 20, false));
    let running = submit(&lane, 10);
    let waits = |request: &mut Option<Request>, waker: &Waker| {
        let submitted = lane.submit(request, None, &Context::from_waker(waker));
        let Submitted::Waits(ticket) = submitted else { panic!("a slot is free") };
        ticket
    };
    let mut late = write(10);
    late.as_mut().unwrap().call_mut().unwrap().deadline = Some(clock.now() + Duration::from_secs(1));
    let ticket = waits(&mut late, Waker::noop());
    let wakes = Arc::<Wakes>::default();
    waits(&mut write(10), &Waker::from(Arc::clone(&wakes)));
    // The slot becomes free for the first call, whose deadline passes before it takes the slot.
    lane.abandon(running);
    assert_eq!(wakes.0.load(Ordering::SeqCst), 0);
    clock.advance(Duration::from_secs(1));
    let failed = lane.submit(&mut late, Some(ticket), &Context::from_waker(Waker::noop()));
    assert!(matches!(failed, Submitted::Failed(Error::DeadlinePassed)));
    assert_eq!(wakes.0.load(Ordering::SeqCst), 1);
}
