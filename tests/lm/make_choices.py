#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes choices/ beside itself: questions of every form, a tokenizer that keeps blanks and case apart, and
the sums of log p that the library lm-eval (0.4.13) gives the choices of its own prompts, with two of the tiny
models of data/. Contexts are longer than the models read, so that most are cut.

    python3 -m venv /somewhere/else && /somewhere/else/bin/pip install torch transformers lm-eval protobuf
    /somewhere/else/bin/python tests/lm/make_choices.py
"""
import csv
import json
import os
import pathlib
import shutil
import tempfile

os.environ['HF_HUB_OFFLINE'] = '1'

import torch
from lm_eval.api.task import ConfigurableTask
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import _yaml_loader
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

BESIDE = pathlib.Path(__file__).resolve().parent
HERE = BESIDE / 'choices'
MODELS = ['gpt2', 'llama']
VOCABULARY = 64

QUESTIONS = {
    'piqa': [
        {'goal': 'Cool soup', 'sol1': 'Blow on it.', 'sol2': 'Wait in the sun. ', 'label': 0},
        {'goal': 'Go ', 'sol1': 'run', 'sol2': ' run', 'label': 1},
        {'goal': '', 'sol1': 'a', 'sol2': 'b', 'label': 0},
    ],
    'arc': [
        {'question': 'Is ice hot?', 'choices': {'text': ['no', 'yes', 'at noon'], 'label': ['1', '2', '3']},
         'answerKey': '1'},
        {'question': 'What is it?', 'choices': {'text': ['a cat', 'A cat', 'cats', ' rat', 'It.'],
                                                'label': ['A', 'B', 'C', 'D', 'E']}, 'answerKey': 'D'},
    ],
    'logiqa': [
        {'context': 'All rats run.', 'question': 'Who runs?', 'label': 'c',
         'options': ['cats', 'no one', 'rats', 'ice']},
        {'context': 'One', 'question': 'Two', 'options': ['a', 'b', 'c', 'd'], 'label': 'a'},
    ],
    'winogrande': [
        {'sentence': 'The cat saw the rat as _ ran.', 'option1': 'cat', 'option2': 'the rat', 'answer': '2'},
        {'sentence': "Ann took Bob's hat, so _'s head is wet. ", 'option1': 'Ann', 'option2': 'Bob',
         'answer': '1'},
        {'sentence': 'So _ ran.', 'option1': 'the cat  ', 'option2': 'Bob', 'answer': '1'},
    ],
    'wsc273': [
        {'text': 'The cat ate the rat. It ran.', 'pronoun': 'It', 'pronoun_loc': 21, 'label': 0,
         'options': ['The cat', 'The rat']},
        {'text': 'Ann told Bob that the hat was on his head  now.', 'pronoun': 'his', 'pronoun_loc': 33,
         'label': 1, 'options': ['Ann', 'Bob']},
        {'text': 'The hat did not suit the cat as it is too wet.', 'pronoun': 'it', 'pronoun_loc': 32,
         'options': ['The hat', 'The cat'], 'label': 0},
    ],
    'wsc': [
        {'text': 'Bob told Ann that he is in .', 'label': 1,
         'target': {'span1_index': 0, 'span1_text': 'Bob', 'span2_index': 4, 'span2_text': 'he'}},
        {'text': 'Ann said " Do n\'t go ( now ) , Bob " as she ran .', 'label': 0,
         'target': {'span1_index': 10, 'span1_text': 'Bob', 'span2_index': 13, 'span2_text': 'she'}},
    ],
    'mmlu': [
        {'question': 'What is "hot"?\nAt noon.', 'choices': ['ice', 'the sun', ' rats', 'a, b'], 'answer': 1},
        {'question': ' One ', 'choices': ['a', 'b', 'c', 'd'], 'answer': 3},
    ],
}
TASKS = {'arc': 'arc/arc_easy.yaml', 'mmlu': 'mmlu/default/mmlu_abstract_algebra.yaml',
         'piqa': 'piqa/piqa.yaml', 'logiqa': 'logiqa/logiqa.yaml', 'winogrande': 'winogrande/default.yaml',
         'wsc273': 'wsc273/default.yaml', 'wsc': 'super_glue/wsc/default.yaml'}
MMLU = 'abstract_algebra_test.csv'


def write_questions():
    for form, questions in QUESTIONS.items():
        lines = ''.join(json.dumps(q) + '\n' for q in questions)
        (HERE / f'{form}.jsonl').write_text(lines)
    with open(HERE / MMLU, 'w', newline='') as file:
        for q in QUESTIONS['mmlu']:
            csv.writer(file).writerow([q['question'], *q['choices'], 'ABCD'[q['answer']]])


def make_tokenizer(prompts):
    """Byte-level BPE of all bytes that occur, with as many merges as there is room for."""
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.decoder = decoders.ByteLevel()
    t.train_from_iterator(prompts, trainers.BpeTrainer(vocab_size=VOCABULARY, show_progress=False))
    assert t.get_vocab_size() == VOCABULARY
    t.save(str(HERE / 'tokenizer.json'))


def task_of(form, folder):
    """lm-eval's own task, of our questions. It has the keys of "target" on top."""
    path = folder / f'{form}.jsonl'
    path.write_text(''.join(json.dumps(q | q.get('target', {})) + '\n' for q in QUESTIONS[form]))
    tasks = pathlib.Path(_yaml_loader.__file__).parent
    config = _yaml_loader.load_yaml(tasks / TASKS[form], resolve_func=True)
    for name in ('training_split', 'validation_split', 'fewshot_split', 'fewshot_config', 'tag',
                 'task_alias'):
        config.pop(name, None)
    config |= {'dataset_path': 'json', 'dataset_name': None, 'test_split': 'test',
               'dataset_kwargs': {'data_files': {'test': str(path)}}}
    return ConfigurableTask(config=config)


def requests_of(task):
    """Of each question the answer, and context and continuation of each choice."""
    task.build_all_requests(limit=None, rank=0, world_size=1)
    found = {}
    for request in task.instances:
        found.setdefault(request.doc_id, []).append(request)
    for number in sorted(found):
        doc = found[number][0].doc
        answer = task.doc_to_text(doc) if task.multiple_input else task.doc_to_target(doc)
        yield int(answer), [r.args for r in found[number]]


def main():
    shutil.rmtree(HERE, ignore_errors=True)
    HERE.mkdir()
    write_questions()
    with tempfile.TemporaryDirectory() as folder:
        items = {form: list(requests_of(task_of(form, pathlib.Path(folder)))) for form in QUESTIONS}
    make_tokenizer(a + b for form in items.values() for _, pairs in form for a, b in pairs)
    tokens = PreTrainedTokenizerFast(tokenizer_file=str(HERE / 'tokenizer.json'))
    with open(HERE / 'expected.csv', 'w') as out:
        out.write('model,form,question,answer,sums\n')
        for name in MODELS:
            model = AutoModelForCausalLM.from_pretrained(BESIDE / 'data' / name, dtype=torch.float32).eval()
            judge = HFLM(pretrained=model, tokenizer=tokens, device='cpu', batch_size=1, prefix_token_id=0)
            for form, questions in items.items():
                for number, (answer, pairs) in enumerate(questions):
                    sums = judge._loglikelihood_tokens(
                        [(pair, *judge._encode_pair(*pair)) for pair in pairs], disable_tqdm=True)
                    values = ','.join(f'{s:.6f}' for s, _ in sums)
                    out.write(f'{name},{form},{number + 1},{answer},{values}\n')


if __name__ == '__main__':
    main()
